"""What a step cost and earned: its record, and each request's share of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.engine.batching import Lane, Packed
from decodeloop.engine.laps import Laps
from decodeloop.engine.proposals import Proposals
from decodeloop.engine.rows import VerifyRows
from decodeloop.speculation.block import NO_DRAFT, Verdict
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
    rows = (
        _row(i, lane, results.get(id(lane)), parts, token_ids=token_ids) for i, lane in enumerate(parts.packed.lanes)
    )
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
        rows=tuple(rows),
    )


def _row(i: int, lane: Lane, result: Judged | None, parts: Parts, *, token_ids: bool) -> StepRow:
    sequence = lane.sequence
    verdict = None if result is None else result.verdict
    commit = None if result is None or verdict is None else result.commit
    emitted = () if commit is None else commit.tokens
    decoded = commit is not None and not lane.prefill_tokens
    drafted = parts.proposals.block.drafts[i] if decoded else NO_DRAFT
    shadows = parts.proposals.shadows[i] if decoded else {}
    return StepRow(
        request_id=sequence.request.id,
        tenant=sequence.organization,
        request_class=sequence.request.request_class,
        reason=parts.decision.reasons[i] if decoded else Reason.PREFILL,
        drafter=parts.plan.drafters[i] if decoded else None,
        context_tokens=len(sequence.tokens) - len(emitted),
        prefill_tokens=lane.prefill_tokens,
        draft_len=len(drafted.tokens),
        verify_len=len(lane.draft.tokens) if decoded else 0,
        scores=drafted.confidence,
        accepted=verdict.accepted if decoded and verdict is not None else 0,
        emitted=len(emitted),
        discarded=0 if commit is None else commit.discarded,
        shadow_match={
            name: shadow_match(guess, verdict.emitted) for name, guess in shadows.items() if verdict is not None
        },
        entropy=() if result is None else result.entropy,
        token_ids=emitted if token_ids else None,
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
