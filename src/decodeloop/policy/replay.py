"""What another policy would have done with the steps that were recorded.

Each step is taken by itself: the same requests, the same drafts, the policy's own lengths. What was judged then is
known now; where the policy would have verified further than anything was judged, the class's record so far fills in,
and that share is reported. Times come from a cost model, for the recorded lengths as for the replayed ones, so that
both err alike. Requests do not finish earlier: this is no simulation of a queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from decodeloop.policy import Policy
from decodeloop.policy.acceptance import AcceptanceModel, Runs
from decodeloop.policy.cost_fit import CostSample
from decodeloop.policy.slots import Leaves
from decodeloop.types import (
    CostModel,
    Decision,
    DecodeRequest,
    Knowledge,
    Plan,
    Reason,
    Scores,
    StepRecord,
    StepRow,
)


@dataclass(slots=True)
class Replayed:
    """tokens, ms: of all replayed steps under one policy. guessed: accepted tokens that nobody had judged."""

    steps: int = 0
    tokens: float = 0.0
    ms: float = 0.0
    verified: int = 0
    guessed: float = 0.0
    reasons: Counter[Reason] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Tokens a ms."""
        return self.tokens / self.ms if self.ms else 0.0

    @property
    def guessed_share(self) -> float:
        return self.guessed / self.tokens if self.tokens else 0.0


@dataclass(frozen=True, slots=True)
class Replay:
    recorded: Replayed
    replayed: Replayed

    @property
    def speedup(self) -> float:
        """Of the replayed policy against the recorded one, by the cost model."""
        return self.replayed.rate / self.recorded.rate if self.recorded.rate else 0.0


def cost_samples(records: Iterable[StepRecord], most: int = 512) -> list[CostSample]:
    """Up to `most` of the records' steps as measured points, evenly spread over them."""
    samples = [
        CostSample(_tokens(record), max(record.load.context_tokens, 0), len(record.rows), record.verify_ms)
        for record in records
        if record.rows and 0.0 < record.verify_ms < float("inf")
    ]
    step = max(len(samples) / most, 1.0)
    return [samples[int(i * step)] for i in range(min(most, len(samples)))]


def replay(policy: Policy, records: Iterable[StepRecord], cost: CostModel, max_draft_len: int) -> Replay:
    """Run `policy` over recorded steps. max_draft_len: of the engine that recorded them.

    A row's drafter is offered with the draft that it made then; a row that had no draft decodes plainly.
    """
    leaves = Leaves()
    acceptance = AcceptanceModel(max_draft_len, leaves)
    recorded, replayed = Replayed(), Replayed()
    for record in records:
        rows = [row for row in record.rows if not row.prefill_tokens and row.emitted + row.discarded]
        if not rows:
            continue
        requests = [_request(row, max_draft_len) for row in rows]
        prompt = sum(row.prefill_tokens for row in record.rows)
        load = replace(record.load, prefill_tokens=prompt)
        plan = policy.plan(load, requests)
        scores = _scores(plan, rows)
        decision = policy.allocate(plan, scores)
        paid_ms = record.draft_ms if any(_paid(row, row.draft_len) for row in rows) else 0.0
        kept_ms = paid_ms if any(_paid(row, n) for row, n in zip(rows, plan.draft_lens, strict=True)) else 0.0

        then, now = sum(row.verify_len for row in rows), sum(decision.verify_lens)
        _tally(recorded, rows, {}, _ms(cost, record, prompt + len(rows) + then, paid_ms))
        taken, guesses = _outcomes(rows, decision, acceptance, leaves)
        ms = _ms(cost, record, prompt + len(rows) + now, kept_ms)
        _tally(replayed, taken, guesses, ms)
        _learn(acceptance, leaves, rows)
        # No time was measured for these lengths: what the model says must not teach the policy's own costs.
        policy.observe(replace(record, load=load, rows=tuple(taken), step_ms=ms, verify_ms=0.0, draft_ms=0.0))
    return Replay(recorded, replayed)


def _request(row: StepRow, max_draft_len: int) -> DecodeRequest:
    return DecodeRequest(
        request_id=row.request_id,
        tenant=row.tenant,
        request_class=row.request_class,
        context_tokens=row.context_tokens,
        max_draft_len=min(row.draft_len, max_draft_len),
        cap=Reason.CAPPED_LIMIT if row.draft_len < max_draft_len else None,
        drafters=(row.drafter,) if row.drafter is not None and row.draft_len else (),
    )


def _scores(plan: Plan, rows: list[StepRow]) -> Scores:
    """The recorded confidence, 1 where the drafter gave none."""
    values = []
    for length, row in zip(plan.draft_lens, rows, strict=True):
        said = np.ones(min(length, row.draft_len))
        given = row.scores[: len(said)]
        said[: len(given)] = given
        values.append(said)
    return Scores(tuple(values), Knowledge.PREFIX)


def _judged(row: StepRow) -> tuple[int, int]:
    """(tokens of the row's draft that were right, positions of it that are known)."""
    if row.drafter is not None and row.drafter in row.shadow_match:
        known = min(row.draft_len, row.accepted + 1)
        return min(row.shadow_match[row.drafter], known), known
    return row.accepted, row.verify_len


def _outcomes(
    rows: list[StepRow], decision: Decision, acceptance: AcceptanceModel, leaves: Leaves
) -> tuple[list[StepRow], dict[int, float]]:
    """The rows as they would have come out, and what had to be guessed beyond: row index -> accepted tokens."""
    taken, guesses = [], {}
    for i, (row, verified, reason) in enumerate(zip(rows, decision.verify_lens, decision.reasons, strict=True)):
        right, known = _judged(row)
        accepted = min(right, verified)
        if right == known < verified and row.drafter is not None:
            leaf = leaves.row(row.tenant, row.request_class, row.drafter)
            guesses[i] = float(np.cumprod(acceptance.conditional[leaf, known:verified]).sum())
        judged = min(verified, known)
        taken.append(
            replace(row, verify_len=judged, accepted=accepted, emitted=accepted + 1, discarded=0, reason=reason)
        )
    return taken, guesses


def _learn(acceptance: AcceptanceModel, leaves: Leaves, rows: list[StepRow]) -> None:
    drafted = [row for row in rows if row.drafter is not None and _judged(row)[1]]
    if drafted:
        slots = np.array([leaves.row(row.tenant, row.request_class, str(row.drafter)) for row in drafted])
        judged = [_judged(row) for row in drafted]
        limit = acceptance.max_draft_len
        runs = Runs.of([min(right, limit) for right, _ in judged], [right >= known for right, known in judged])
        acceptance.learn(slots, runs)


def _ms(cost: CostModel, record: StepRecord, tokens: int, drafting_ms: float) -> float:
    return cost.step_ms(tokens, record.load.context_tokens, len(record.rows)) + drafting_ms


def _tally(total: Replayed, rows: list[StepRow], guesses: Mapping[int, float], ms: float) -> None:
    guessed = sum(guesses.values())
    total.steps += 1
    total.ms += ms
    total.tokens += sum(row.accepted + 1 for row in rows) + guessed
    total.verified += sum(row.verify_len for row in rows)
    total.guessed += guessed
    total.reasons.update(row.reason for row in rows)


def _tokens(record: StepRecord) -> int:
    return sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)


def _paid(row: StepRow, draft_len: int) -> bool:
    return draft_len > 0 and row.drafter is not None and row.drafter not in row.shadow_match
