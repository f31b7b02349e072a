"""What a step cost and earned: its record, and each request's share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from decodeloop.engine.batching import Lane, Packed
from decodeloop.engine.laps import Laps
from decodeloop.engine.proposals import Proposals
from decodeloop.engine.rows import VerifyRows
from decodeloop.speculation.block import Verdict
from decodeloop.speculation.drafters.shadow import shadow_match
from decodeloop.types import Commit, Decision, Load, Plan, Reason, StepRecord, StepRow


@dataclass(slots=True)
class Judged:
    """A lane with its verdict, or the error that took its place; the commit follows."""

    lane: Lane
    rows: VerifyRows
    verdict: Verdict | None = None
    error: Exception | None = None
    entropy: tuple[float, ...] = ()
    commit: Commit | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What one step came to, stage by stage."""

    load: Load
    plan: Plan
    proposals: Proposals
    decision: Decision
    packed: Packed
    judged: Sequence[Judged]


def step_record(number: int, parts: Parts, laps: Laps, *, carried_ms: float, token_ids: bool) -> StepRecord:
    """carried_ms: what observing the previous step took; it counts as this step's overhead."""
    results = {id(result.lane): result for result in parts.judged}
    rows = (_row(i, lane, results.get(id(lane)), parts) for i, lane in enumerate(parts.packed.lanes))
    return StepRecord(
        step=number,
        at_s=laps.started_s,
        load=parts.load,
        draft_ms=laps.ms("draft"),
        verify_ms=laps.ms("verify"),
        sample_ms=laps.ms("sample"),
        overhead_ms=laps.ms("overhead") + carried_ms,
        step_ms=laps.total_ms + carried_ms,
        predicted_ms=parts.decision.expected_ms,
        rows=tuple(rows if token_ids else (replace(row, token_ids=None) for row in rows)),
    )


def _row(i: int, lane: Lane, result: Judged | None, parts: Parts) -> StepRow:
    sequence = lane.sequence
    emitted = result.commit.tokens if result is not None and result.commit is not None else ()
    row = StepRow(
        request_id=sequence.request.id,
        tenant=sequence.organization,
        request_class=sequence.request.request_class,
        reason=Reason.PREFILL,
        context_tokens=len(sequence.tokens) - len(emitted),
        prefill_tokens=lane.prefill_tokens,
        emitted=len(emitted),
        entropy=() if result is None else result.entropy,
        token_ids=emitted,
    )
    if result is None or result.verdict is None or result.commit is None:
        return row
    if lane.prefill_tokens:
        return replace(row, discarded=result.commit.discarded)
    drafted = parts.proposals.block.drafts[i]
    shadows = parts.proposals.shadows[i]
    return replace(
        row,
        reason=parts.decision.reasons[i],
        drafter=parts.plan.drafters[i],
        draft_len=len(drafted.tokens),
        verify_len=len(lane.draft.tokens),
        scores=drafted.confidence,
        accepted=result.verdict.accepted,
        discarded=result.commit.discarded,
        shadow_match={name: shadow_match(guess, result.verdict.emitted) for name, guess in shadows.items()},
    )


def tally(record: StepRecord, packed: Packed, judged: Sequence[Judged]) -> None:
    """Add to each sequence its share of the step; the shares sum to the step."""
    forwarded = sum(lane.tokens for lane in packed.lanes)
    drafted = sum(row.draft_len for row in record.rows)
    lanes, samples = len(packed.lanes), len(judged)
    for lane, row in zip(packed.lanes, record.rows, strict=True):
        own = lane.sequence.tally
        verify_ms = record.verify_ms * lane.tokens / forwarded
        own.overhead_ms += record.overhead_ms / lanes
        own.sample_ms += record.sample_ms / samples if lane.judged else 0.0
        own.draft_ms += record.draft_ms * (row.draft_len / drafted if drafted else 1 / lanes)
        if lane.prefill_tokens:
            own.prefill_ms += verify_ms
        else:
            own.verify_ms += verify_ms
            own.steps += 1
            own.reasons[row.reason] += 1
        own.drafted += row.draft_len
        own.verified += row.verify_len
        own.accepted += row.accepted
        own.discarded += row.discarded
        if row.verify_len:
            own.accepted_per_step.append(row.accepted)
            own.verified_per_step.append(row.verify_len)
            if row.drafter is not None:
                own.drafters[row.drafter] += 1
