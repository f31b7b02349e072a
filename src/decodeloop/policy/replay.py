"""What another policy would have done with the steps that were recorded.

Each step is taken by itself: the same requests, the same drafts, the policy's own lengths, decided from what came
before. What was judged then is known now; where the policy would have verified further than anything was judged, the
class's record so far fills in. A row that had no draft decodes plainly. How much of the answer rests on either is part
of it. Times come from a cost model, for the recorded lengths as for the replayed ones, so that both err alike; how far
the model is from the measured times is part of the answer too. Requests do not finish earlier: this is no simulation
of a queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decodeloop.policy import Policy
from decodeloop.policy.acceptance import AcceptanceModel, Runs
from decodeloop.policy.cost_fit import CostSample
from decodeloop.policy.cost_start import speculating_ms
from decodeloop.policy.replayed import Replay, Replayed, StepTold
from decodeloop.policy.slots import Leaves
from decodeloop.types import (
    CostModel,
    Decision,
    DecodeRequest,
    Knowledge,
    Plan,
    Reason,
    Scores,
    Slo,
    Speculation,
    SpeculationMode,
    StepRecord,
    StepRow,
)


@dataclass(frozen=True, slots=True)
class Situation:
    """What the record doesn't tell of the engine and its requests.

    max_draft_len: of the engine that recorded. tpot_ms: the objective of every request.
    """

    max_draft_len: int
    tpot_ms: float | None = None


def cost_samples(records: Iterable[StepRecord], most: int = 512) -> list[CostSample]:
    """Up to `most` of the records' steps as measured points, evenly spread over them: all of a step but drafting."""
    samples = [
        CostSample(_tokens(record), max(record.load.context_tokens, 0), len(record.rows), ms)
        for record in records
        for ms in [record.step_ms - record.draft_ms]
        if record.rows and 0.0 < ms < float("inf")
    ]
    step = max(len(samples) / most, 1.0)
    return [samples[int(i * step)] for i in range(min(most, len(samples)))]


def replay(policy: Policy, records: Iterable[StepRecord], cost: CostModel, situation: Situation) -> Replay:
    """Run `policy` over recorded steps.

    A row's drafter is offered with the draft that it made then; a row that had no draft decodes plainly.
    """
    leaves = Leaves()
    acceptance = AcceptanceModel(situation.max_draft_len, leaves)
    found = Replay(Replayed(), Replayed(), Replayed())
    later_ms = 0.0  # than when it was recorded
    for record, rows in _decoding(records):
        requests = [_request(row, situation) for row in rows]
        prompt = sum(row.prefill_tokens for row in record.rows)
        load = replace(record.load, prefill_tokens=prompt)
        plan = policy.plan(load, requests)
        decision = policy.allocate(plan, _scores(plan, rows))
        kept_ms = record.draft_ms if policy.learns or any(plan.draft_lens) else 0.0

        plain = prompt + len(rows)
        then = _ms(cost, record, plain, [row.verify_len for row in rows], record.draft_ms)
        now = _ms(cost, record, plain, decision.verify_lens, kept_ms)
        taken, guesses = _outcomes(rows, decision, acceptance, leaves)
        found.measured.add(StepTold(rows, record.step_ms))
        found.recorded.add(StepTold(rows, then))
        found.replayed.add(StepTold(taken, now, _blind(rows, requests), decision.verify_lens, guesses))
        _learn(acceptance, leaves, rows)
        # No time was measured for these lengths: what the model says must not teach the policy's own costs.
        at_s = record.at_s + later_ms / 1e3
        policy.observe(
            replace(
                record,
                at_s=at_s,
                load=load,
                rows=tuple(taken),
                step_ms=now,
                predicted_ms=decision.expected_ms,
                verify_ms=0.0,
                draft_ms=0.0,
            )
        )
        later_ms += now - record.step_ms
    return found


def _decoding(records: Iterable[StepRecord]) -> Iterator[tuple[StepRecord, list[StepRow]]]:
    """The steps in which anything was decoded, with the rows that were."""
    for record in records:
        rows = [row for row in record.rows if not row.prefill_tokens and row.emitted + row.discarded]
        if rows:
            yield record, rows


def _request(row: StepRow, situation: Situation) -> DecodeRequest:
    return DecodeRequest(
        request_id=row.request_id,
        tenant=row.tenant,
        request_class=row.request_class,
        context_tokens=row.context_tokens,
        max_draft_len=min(row.draft_len, situation.max_draft_len),
        cap=Reason.CAPPED_LIMIT if row.draft_len < situation.max_draft_len else None,
        drafters=(row.drafter,) if row.drafter is not None and row.draft_len else (),
        speculation=_asked(row),
        slo=Slo(tpot_ms=situation.tpot_ms),
    )


def _asked(row: StepRow) -> Speculation:
    """What the caller wanted, as far as the step's reason tells."""
    if row.reason is Reason.OFF_USER:
        return Speculation(SpeculationMode.OFF)
    if row.reason is Reason.FORCED:
        return Speculation(SpeculationMode.FORCE, row.draft_len)
    return Speculation()


def _blind(rows: Sequence[StepRow], requests: Sequence[DecodeRequest]) -> list[bool]:
    """[N] whether a policy might have drafted where the record has no draft to show."""
    knows_why = (Reason.NO_PROPOSAL, Reason.OFF_USER, Reason.CAPPED_KV, Reason.CAPPED_LIMIT, Reason.DENIED)
    return [not request.drafters and row.reason not in knows_why for row, request in zip(rows, requests, strict=True)]


def _scores(plan: Plan, rows: list[StepRow]) -> Scores:
    """The recorded confidence, 1 where the drafter gave none."""
    values = []
    for length, row in zip(plan.draft_lens, rows, strict=True):
        said = np.ones(min(length, row.draft_len))
        given = row.scores[: len(said)]
        said[: len(given)] = given
        values.append(said)
    return Scores(tuple(values), Knowledge.PREFIX)


def judged(row: StepRow) -> tuple[int, int]:
    """(tokens of the row's draft that were right, positions of it that are known).

    A free drafter's draft is compared with the text as far as that went; any other as far as it was verified.
    """
    if row.drafter is not None and row.drafter in row.shadow_match:
        known = min(row.draft_len, row.accepted + 1)
        return min(row.shadow_match[row.drafter], known), known
    return row.accepted, min(row.verify_len, row.accepted + 1)


def _outcomes(
    rows: list[StepRow], decision: Decision, acceptance: AcceptanceModel, leaves: Leaves
) -> tuple[list[StepRow], dict[int, float]]:
    """The rows as they would have come out, and what had to be guessed beyond: row index -> accepted tokens."""
    taken, guesses = [], {}
    for i, (row, verified, reason) in enumerate(zip(rows, decision.verify_lens, decision.reasons, strict=True)):
        right, known = judged(row)
        accepted = min(right, verified)
        if right == known < verified and row.drafter is not None:
            leaf = leaves.row(row.tenant, row.request_class, row.drafter)
            guesses[i] = float(np.cumprod(acceptance.conditional[leaf, known:verified]).sum())
        # What the policy is told ends where knowledge ends.
        told = verified if right < known else min(verified, known)
        taken.append(replace(row, verify_len=told, accepted=accepted, emitted=accepted + 1, discarded=0, reason=reason))
    return taken, guesses


def _learn(acceptance: AcceptanceModel, leaves: Leaves, rows: list[StepRow]) -> None:
    drafted = [row for row in rows if row.drafter is not None and judged(row)[1]]
    if drafted:
        slots = np.array([leaves.row(row.tenant, row.request_class, str(row.drafter)) for row in drafted])
        known = [judged(row) for row in drafted]
        limit = acceptance.max_draft_len
        runs = Runs.of([min(right, limit) for right, _ in known], [right >= seen for right, seen in known])
        acceptance.learn(slots, runs)


def _ms(cost: CostModel, record: StepRecord, plain_tokens: int, lens: Sequence[int], drafting_ms: float) -> float:
    beside_ms = drafting_ms + speculating_ms(cost, sum(length > 0 for length in lens))
    return cost.step_ms(plain_tokens + sum(lens), record.load.context_tokens, len(record.rows)) + beside_ms


def _tokens(record: StepRecord) -> int:
    return sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)
