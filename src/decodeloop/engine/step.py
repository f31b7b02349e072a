"""One step of the decode loop: plan, propose, allocate, verify, judge, commit, observe."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from decodeloop.engine.batching import Packed, pack
from decodeloop.engine.judging import Judging
from decodeloop.engine.laps import Laps
from decodeloop.engine.proposals import Proposals, Proposers, Spoken
from decodeloop.engine.records import Judged, Parts, step_record, tally
from decodeloop.engine.scheduler import Scheduler, Turn
from decodeloop.engine.sequence import Sequence as EngineSequence
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.text import Tokenizer
from decodeloop.policy import Policy
from decodeloop.speculation import Draft, Verifier
from decodeloop.speculation.admission import refuse_anticipation, refuse_inadmissible
from decodeloop.speculation.forward import Runner
from decodeloop.speculation.sampling import NothingLeft
from decodeloop.types import Chunk, Decision, DecodeRequest, FinishReason, Plan, Reason, RequestRefused, StepRecord

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Said:
    """What a step gives one sequence's reader."""

    sequence: EngineSequence
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    said: tuple[Said, ...]
    record: StepRecord | None = None


class Engine:
    """Owns only the order of things: the scheduler owns sequences, the runner the model, the policy its beliefs."""

    def __init__(
        self,
        *,
        runner: Runner,
        scheduler: Scheduler,
        proposers: Proposers,
        verifier: Verifier,
        policy: Policy,
        tokenizer: Tokenizer,
        settings: EngineSettings,
        clock: Callable[[], float],
    ) -> None:
        self.runner, self.scheduler, self.proposers = runner, scheduler, proposers
        self.verifier, self.policy, self.tokenizer = verifier, policy, tokenizer
        self._settings, self._clock = settings, clock
        self._judging = Judging(verifier, runner)
        self._step = 0
        self._carried_ms = 0.0

    def step(self) -> Outcome:
        """Advance every running sequence. Failures end the sequences they concern and no others."""
        laps = Laps(self._clock)
        late = [self._expire(sequence) for sequence in self.scheduler.expired(laps.started_s)]
        turn = self.scheduler.next_turn(laps.started_s)
        if not turn.decoding and not turn.chunks:
            return Outcome(tuple(late))
        load = self.scheduler.load(laps.started_s, turn.chunks)
        laps.lap("overhead")
        spoken = self.proposers.speak(turn.decoding)
        laps.lap("draft")
        plan = self.policy.plan(load, self._decode_requests(turn, spoken))
        if plan.held:
            load, turn = turn.load_without(load, plan.held), turn.without(plan.held)
            spoken = spoken.without(plan.held)
        self._reserve(turn, plan)
        laps.lap("overhead")
        proposals = self.proposers.propose(plan, turn.decoding, spoken)
        laps.lap("draft")
        decision = self._allocate(plan, proposals)
        self.proposers.heed(spoken, turn.decoding, decision)
        packed = pack(turn, _submitted(proposals, decision), self.runner.info.vocab_size)
        laps.lap("overhead")
        try:
            forward = self.runner.forward(packed.batch)
        except Exception as error:
            log.exception("the forward failed; its %d sequences end", len(packed.lanes))
            return Outcome((*late, *(self._fail(lane.sequence, error) for lane in packed.lanes)))
        laps.lap("verify")
        judged = self._judging.judge(packed.lanes, forward)
        laps.lap("sample")
        said = self._commit(packed, judged)
        record = self._record(laps, Parts(load, plan, proposals, decision, packed, judged))

        started_s = self._clock()
        self.policy.observe(record)
        self._carried_ms = 1e3 * (self._clock() - started_s)
        if not turn.chunks:
            self.proposers.took(spoken, decision, laps.ms("draft") + laps.ms("overhead") + self._carried_ms)
        return Outcome((*late, *said), record)

    def abort(self, sequence: EngineSequence) -> None:
        self.scheduler.finish(sequence, FinishReason.ABORT)
        self.proposers.finish(sequence)

    def _decode_requests(self, turn: Turn, spoken: Spoken) -> list[DecodeRequest]:
        return [self._decode_request(*own, turn) for own in zip(turn.decoding, spoken.proposals, strict=True)]

    def _decode_request(
        self, sequence: EngineSequence, proposals: Mapping[str, tuple[float, ...]], turn: Turn
    ) -> DecodeRequest:
        maximum = self._settings.max_draft_len
        limit = min(
            maximum,
            sequence.max_tokens - sequence.output_tokens - 1,
            self.scheduler.max_context - len(sequence.tokens) - 1,
            turn.draft_budget // len(turn.decoding),
        )
        room = self.scheduler.slack(sequence) + self.scheduler.draft_room(turn)
        cap = Reason.CAPPED_KV if room < limit else Reason.CAPPED_LIMIT if limit < maximum else None
        return DecodeRequest(
            request_id=sequence.request.id,
            tenant=sequence.organization,
            request_class=sequence.request.request_class,
            context_tokens=len(sequence.tokens),
            max_draft_len=max(0, min(limit, room)),
            cap=cap,
            drafters=self.proposers.names,
            speculation=sequence.request.speculation,
            slo=sequence.request.slo,
            temperature=sequence.request.params.temperature,
            entropy=sequence.entropy,
            proposals=proposals,
        )

    def _reserve(self, turn: Turn, plan: Plan) -> None:
        for sequence, draft_len in zip(turn.decoding, plan.draft_lens, strict=True):
            if draft_len:
                self.scheduler.reserve_draft(sequence, draft_len)

    def _allocate(self, plan: Plan, proposals: Proposals) -> Decision:
        scores = proposals.block.scores()
        refuse_inadmissible(self.verifier, proposals.block.drafts, scores)
        decision = self.policy.allocate(plan, scores)
        refuse_anticipation(self.verifier, proposals.block.drafts, decision)
        return decision

    def _commit(self, packed: Packed, judged: Sequence[Judged]) -> list[Said]:
        for lane in packed.lanes:
            if not lane.judged:
                self.scheduler.advance_prompt(lane.sequence, lane.prefill_tokens)
        return [self._commit_one(result) for result in judged]

    def _commit_one(self, result: Judged) -> Said:
        sequence = result.lane.sequence
        if result.verdict is None:
            assert result.error is not None
            return self._fail(sequence, result.error)
        try:
            committed = self.scheduler.commit(sequence, result.verdict, result.rows, self.tokenizer)
        except Exception as error:  # its text: stop strings, parsers
            return self._fail(sequence, error)
        result.commit = committed.commit
        sequence.entropy = result.entropy[len(committed.commit.tokens) - 1]
        if sequence.finish_reason is not None:
            self.proposers.finish(sequence)
        return Said(sequence, committed.chunks)

    def _expire(self, sequence: EngineSequence) -> Said:
        try:
            return self._end(sequence, FinishReason.DEADLINE)
        except Exception as error:
            return self._fail(sequence, error)

    def _end(self, sequence: EngineSequence, reason: FinishReason) -> Said:
        chunks = self.scheduler.finish(sequence, reason)
        self.proposers.finish(sequence)
        return Said(sequence, chunks)

    def _fail(self, sequence: EngineSequence, error: Exception) -> Said:
        sequence.error = failure(error)
        if sequence.error.status >= 500:
            log.warning("request %s failed", sequence.request.id, exc_info=error)
        return self._end(sequence, FinishReason.ERROR)

    def _record(self, laps: Laps, parts: Parts) -> StepRecord:
        laps.lap("overhead")
        token_ids = self._settings.record_token_ids
        record = step_record(self._step, parts, laps, carried_ms=self._carried_ms, token_ids=token_ids)
        tally(record, parts.packed, parts.judged)
        self._step += 1
        return record


def failure(error: Exception) -> RequestRefused:
    """What a request's sender is told: that it asked for the impossible, or that the fault is ours."""
    if isinstance(error, NothingLeft):
        return RequestRefused(str(error), code="nothing_left")
    return RequestRefused(f"the engine failed on this request: {error}", status=500, code="engine_error")


def _submitted(proposals: Proposals, decision: Decision) -> list[Draft]:
    return [
        draft.cut(verify_len) for draft, verify_len in zip(proposals.block.drafts, decision.verify_lens, strict=True)
    ]
