"""A real policy in a simulated engine: it sees what it would see in ours, and learns from what comes of it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodeloop.evaluation.acceptance import CLASSES
from decodeloop.evaluation.asking import Always, Asking
from decodeloop.evaluation.fleet import Batch, Decided, Outcome
from decodeloop.evaluation.rules import DRAFTER, draft_ms, free_ms
from decodeloop.policy import Policy
from decodeloop.types import (
    CostModel,
    Decision,
    DecodeRequest,
    Knowledge,
    Load,
    Plan,
    Reason,
    Scores,
    Slo,
    StepRecord,
    StepRow,
)

TENANT = "simulated"
FREE_DRAFTER = "ngram"


class PolicyRule:
    """Plays one drafter, whose drafts the simulation knows. max_draft_len: the policy's own."""

    def __init__(
        self,
        policy: Policy,
        cost: CostModel,
        *,
        max_draft_len: int,
        paid: bool = False,
        tpot_ms: float | None = None,
        asking: Asking | Always | None = None,
    ) -> None:
        """asking: who is asked in a step; None: whom our engine would ask."""
        self._policy, self._cost, self._most = policy, cost, max_draft_len
        self._drafter, self._free, self._slo = DRAFTER if paid else FREE_DRAFTER, not paid, Slo(tpot_ms=tpot_ms)
        ours = Asking(TENANT) if self._free and policy.learns else Always()
        self._asking = ours if asking is None else asking
        self._asked: Sequence[int] = ()
        self._step, self._now_s = 0, 0.0
        self._plan = Plan((), (), ())
        self._decision = Decision((), ())

    def decide(self, batch: Batch) -> Decided:
        self._asked = self._asking.due(batch.requests)
        self._plan = self._policy.plan(self._load(batch), self._requests(batch))
        drafted = np.minimum(np.array(self._plan.draft_lens, dtype=np.int64), batch.drafts.offered)
        said = tuple(batch.drafts.confidence[i, :n] for i, n in enumerate(drafted.tolist()))
        self._decision = self._policy.allocate(self._plan, Scores(said, Knowledge.PREFIX))
        self._asking.heed(self._decision)
        return Decided(np.array(self._decision.verify_lens, dtype=np.int64), self._drafting_ms(batch))

    def _drafting_ms(self, batch: Batch) -> float:
        depth = int(max(self._plan.draft_lens, default=0))
        if self._free:  # scored whenever they are asked, by policies that learn from it
            return free_ms(self._cost, batch.sequences) if depth or (self._asked and self._policy.learns) else 0.0
        return draft_ms(self._cost, depth, int(np.count_nonzero(self._plan.draft_lens)), batch.context)

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None:
        started_s, self._now_s = self._now_s, self._now_s + outcome.step_ms / 1e3
        self._step += 1
        rows = tuple(self._row(batch, i, int(accepted)) for i, accepted in enumerate(outcome.accepted))
        record = StepRecord(
            step=self._step,
            at_s=started_s,
            load=self._load(batch),
            draft_ms=decided.draft_ms,
            verify_ms=outcome.step_ms - decided.draft_ms,
            sample_ms=0.0,
            overhead_ms=0.0,
            step_ms=outcome.step_ms,
            predicted_ms=self._decision.expected_ms,
            rows=rows if not batch.prefill else (*rows, self._prompt(batch.prefill)),
        )
        self._policy.observe(record)

    def _load(self, batch: Batch) -> Load:
        return Load(batch.sequences, batch.waiting, batch.context, 1.0, prefill_tokens=batch.prefill)

    def _requests(self, batch: Batch) -> list[DecodeRequest]:
        """Free drafters have spoken before the plan where they were asked, as they do in ours."""
        asked = frozenset(self._asked)
        return [
            DecodeRequest(
                request_id=str(request.number),
                tenant=TENANT,
                request_class=request.arrival.request_class,
                context_tokens=int(batch.contexts[i]),
                max_draft_len=min(self._most, max(request.arrival.output_tokens - 1, 0)),
                cap=None,
                drafters=(self._drafter,),
                slo=self._slo,
                proposals=self._proposals(batch, i, asked=i in asked),
            )
            for i, request in enumerate(batch.requests)
        ]

    def _proposals(self, batch: Batch, i: int, *, asked: bool) -> dict[str, list[float]]:
        if not self._free:
            return {}
        if not asked:
            return {self._drafter: []}
        offered = int(min(batch.drafts.offered[i], self._most))
        return {self._drafter: batch.drafts.confidence[i, :offered].tolist()}

    def _row(self, batch: Batch, i: int, accepted: int) -> StepRow:
        drafted = int(min(self._plan.draft_lens[i], batch.drafts.offered[i]))
        right = int(batch.drafts.right[i])
        return StepRow(
            request_id=str(batch.requests[i].number),
            tenant=TENANT,
            request_class=CLASSES[batch.classes[i]],
            reason=self._decision.reasons[i],
            drafter=self._plan.drafters[i],
            context_tokens=int(batch.contexts[i]),
            draft_len=drafted,
            verify_len=self._decision.verify_lens[i],
            scores=tuple(batch.drafts.confidence[i, :drafted].tolist()),
            accepted=accepted,
            emitted=accepted + 1,
            shadow_match={self._drafter: min(right, accepted + 1)} if self._free and i in self._asked else {},
        )

    def _prompt(self, tokens: int) -> StepRow:
        """The prompts that shared the step, as one row."""
        return StepRow(
            request_id="prompts",
            tenant=TENANT,
            request_class=CLASSES[0],
            reason=Reason.PREFILL,
            prefill_tokens=tokens,
        )
