"""How far a simulation's step times may be trusted: their error against steps that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_start import speculating_ms
from decodeloop.types import StepRecord

FREE = frozenset({"ngram", "suffix"})
REPEATED = 8  # steps of a shape, for their median to be told from their noise
PACE_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Error:
    """median, p95: relative, of single steps; total: of their sum, signed."""

    steps: int
    median: float
    p95: float
    total: float

    def said(self) -> str:
        return f"{self.median:.1%} median, {self.p95:.1%} p95, {self.total:+.1%} of the total"


@dataclass(frozen=True, slots=True)
class Trust:
    """label: where step times come from. Errors are of recorded steps that the times were not learned from.

    error: of the times as they are used. foretold: of each step by what those before it had taught, as policies know
    it. noise: of a predictor that knows the median of the very shape; beyond that no model of shapes can be. shapes: of
    the times against those medians, at their pace. None where nothing was compared, or no shape came often enough.
    """

    label: str
    error: Error | None = None
    foretold: Error | None = None
    noise: Error | None = None
    shapes: Error | None = None

    def said(self) -> str:
        if self.error is None:
            return f"{self.label}; not compared with any measured step"
        said = [
            f"{self.label}; calibration error on {self.error.steps} recorded steps it didn't learn from: "
            f"{self.error.said()}"
        ]
        if self.foretold is not None:
            said.append(f"each foretold by the steps before it {self.foretold.median:.1%} and {self.foretold.p95:.1%}")
        if self.noise is not None and self.shapes is not None:
            said.append(
                f"steps differ from the median of their own shape by {self.noise.median:.1%} and {self.noise.p95:.1%}"
            )
            said.append(
                f"the times, at their pace, from those medians by {self.shapes.median:.1%} and {self.shapes.p95:.1%}"
            )
        return "; ".join(said)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def calibrated(surface: CostSurface, records: Sequence[StepRecord], *, source: str) -> tuple[CostSurface, Trust]:
    """The surface taught by every other recorded step (sampling, overhead, free drafting), its error on the others.

    What passes between a step and the next is part of what it takes: a simulation has nothing between its steps. A
    surface that learns ends at the machine's pace of the last few steps; this one is set to the pace of them all.
    """
    usable = [record for record in with_pauses(records) if record.rows and record.verify_ms > 0.0]
    taught, held = usable[::2], usable[1::2]
    foretold = []
    for i, record in enumerate(usable):
        if i % 2:
            foretold.append(predicted_ms(surface, record))
        else:
            surface.observe(record, FREE, {})
    keep_pace(surface, taught)
    label = f"measured ({source})"
    if not held:
        return surface, Trust(label)
    repeated, medians = _repeated(taught, held)
    return surface, Trust(
        label,
        error(surface, held),
        _error(foretold, _step_ms(held)),
        _error(medians, _step_ms(repeated)) if repeated else None,
        _at_their_pace([predicted_ms(surface, record) for record in repeated], medians) if repeated else None,
    )


def noise(records: Sequence[StepRecord]) -> Error | None:
    """Of every other step against the median of the rest of its shape; None where no shape came often enough."""
    repeated, medians = _repeated(records[::2], records[1::2])
    return _error(medians, _step_ms(repeated)) if repeated else None


def keep_pace(surface: CostSurface, records: Sequence[StepRecord]) -> None:
    """Set the machine's pace so that these steps take as long in all as they did."""
    measured_ms = sum(_step_ms(records))
    for _ in range(PACE_ROUNDS if records else 0):  # what doesn't go with the pace is small
        surface.slow(measured_ms / sum(predicted_ms(surface, record) for record in records))


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


def error(surface: CostSurface, records: Sequence[StepRecord]) -> Error:
    """Of whole steps."""
    return _error([predicted_ms(surface, record) for record in records], _step_ms(records))


def predicted_ms(surface: CostSurface, record: StepRecord) -> float:
    """What the whole step should have taken, given what drafting took: not in every step are drafters asked."""
    deciding = speculating_ms(surface, sum(row.draft_len > 0 for row in record.rows))
    forward = surface.step_ms(_tokens(record), record.load.context_tokens, len(record.rows))
    return forward + deciding + record.draft_ms


def _at_their_pace(said_ms: Sequence[float], medians_ms: Sequence[float]) -> Error:
    """Bursts lift the mean, which the pace is set to, above the medians: here only the form counts."""
    pace = sum(medians_ms) / sum(said_ms)
    return _error([pace * ms for ms in said_ms], medians_ms)


def _error(said_ms: Sequence[float], measured_ms: Sequence[float]) -> Error:
    said, measured = np.array(said_ms), np.array(measured_ms)
    errors = np.abs(said / measured - 1.0)
    return Error(
        len(errors),
        round(float(np.median(errors)), 4),
        round(float(np.quantile(errors, 0.95)), 4),
        round(float(said.sum() / measured.sum() - 1.0), 4),
    )


def _repeated(taught: Sequence[StepRecord], held: Sequence[StepRecord]) -> tuple[list[StepRecord], list[float]]:
    """The held steps of whose shape REPEATED were taught, at least; and what the median of those took."""
    seen: dict[tuple[int, int, int, bool], list[float]] = {}
    for record in taught:
        seen.setdefault(_shape(record), []).append(record.step_ms)
    medians = {shape: float(np.median(ms)) for shape, ms in seen.items() if len(ms) >= REPEATED}
    repeated = [record for record in held if _shape(record) in medians]
    return repeated, [medians[_shape(record)] for record in repeated]


def _shape(record: StepRecord) -> tuple[int, int, int, bool]:
    """Tokens, sequences, context in half octaves, and whether a prompt was read."""
    octave = round(2.0 * np.log2(1 + record.load.context_tokens))
    return _tokens(record), len(record.rows), octave, any(row.prefill_tokens for row in record.rows)


def _tokens(record: StepRecord) -> int:
    return sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)


def _step_ms(records: Sequence[StepRecord]) -> list[float]:
    return [record.step_ms for record in records]
