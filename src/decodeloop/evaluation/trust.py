"""How far a simulation's step times may be trusted: their error against steps that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_start import speculating_ms
from decodeloop.types import StepRecord

FREE = frozenset({"ngram", "suffix"})


@dataclass(frozen=True, slots=True)
class Trust:
    """label: where step times come from.

    error_median, error_p95: relative, of single steps; total: of their sum, signed. None where nothing was compared.
    """

    label: str
    steps: int = 0
    error_median: float | None = None
    error_p95: float | None = None
    total: float | None = None

    def said(self) -> str:
        if self.error_median is None or self.error_p95 is None or self.total is None:
            return f"{self.label}; not compared with any measured step"
        return (
            f"{self.label}; calibration error on {self.steps} recorded steps it didn't learn from: "
            f"{self.error_median:.1%} median, {self.error_p95:.1%} p95, {self.total:+.1%} of the total"
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "steps": self.steps,
            "error_median": self.error_median,
            "error_p95": self.error_p95,
            "total": self.total,
        }


def calibrated(surface: CostSurface, records: Sequence[StepRecord], *, source: str) -> tuple[CostSurface, Trust]:
    """The surface taught by every other recorded step (sampling, overhead, free drafting), its error on the others.

    What passes between a step and the next is part of what it takes: a simulation has nothing between its steps.
    """
    usable = [record for record in with_pauses(records) if record.rows and record.verify_ms > 0.0]
    for record in usable[::2]:
        surface.observe(record, FREE, {})
    held = usable[1::2]
    if not held:
        return surface, Trust(f"measured ({source})")
    return surface, replace(error(surface, held), label=f"measured ({source})")


def with_pauses(records: Sequence[StepRecord]) -> list[StepRecord]:
    """Each step with the time until the next of the same run began; where that is longer than the step, nobody ran."""
    pauses = [1e3 * (after.at_s - record.at_s) - record.step_ms for record, after in pairwise(records)]
    follows = [after.step == record.step + 1 for record, after in pairwise(records)]
    return [
        replace(record, overhead_ms=record.overhead_ms + ms, step_ms=record.step_ms + ms)
        if follow and 0.0 < ms < record.step_ms
        else record
        for record, ms, follow in zip(records, [*pauses, 0.0], [*follows, False], strict=True)
    ]


def error(surface: CostSurface, records: Sequence[StepRecord]) -> Trust:
    """Of whole steps, drafting included."""
    measured = np.array([record.step_ms for record in records])
    predicted = np.array([_predicted(surface, record) for record in records])
    errors = np.abs(predicted / measured - 1.0)
    return Trust(
        "",
        len(records),
        round(float(np.median(errors)), 4),
        round(float(np.quantile(errors, 0.95)), 4),
        round(float(predicted.sum() / measured.sum() - 1.0), 4),
    )


def _predicted(surface: CostSurface, record: StepRecord) -> float:
    tokens = sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)
    paid = any(row.draft_len and row.drafter not in FREE for row in record.rows)
    drafting = record.draft_ms if paid else surface.free_draft_ms(len(record.rows))
    drafting += speculating_ms(surface, sum(row.draft_len > 0 for row in record.rows))
    return surface.step_ms(tokens, record.load.context_tokens, len(record.rows)) + drafting
