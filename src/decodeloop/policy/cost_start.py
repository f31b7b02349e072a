"""Costs before and without a measured surface: gathered from the first steps, or asked point by point."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from decodeloop.policy.cost import CostSurface, StepCosts
from decodeloop.policy.cost_fit import CostSample
from decodeloop.types import CostModel, FloatArray, IntArray, StepRecord

LEAST_STEPS, LEAST_SIZES = 48, 3
MOST_POINTS = 4096


class CostStart:
    """Collects the first steps until they span enough sizes for a surface."""

    def __init__(self) -> None:
        self._samples: list[CostSample] = []

    def observe(self, record: StepRecord) -> CostSurface | None:
        """The surface, once there is one."""
        tokens = sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)
        if tokens and record.verify_ms > 0.0 and np.isfinite(record.verify_ms):
            sample = CostSample(tokens, max(record.load.context_tokens, 0), len(record.rows), record.verify_ms)
            self._samples = [*self._samples[-4 * LEAST_STEPS :], sample]
        sizes = {sample.tokens for sample in self._samples}
        enough = len(self._samples) >= LEAST_STEPS and len(sizes) >= LEAST_SIZES
        return CostSurface(self._samples) if enough else None

    def describe(self) -> Mapping[str, Any]:
        return {"measured": False, "steps_seen": len(self._samples)}


def speculating_ms(cost: CostModel, drafts: int) -> float:
    """What a step that decides on `drafts` drafts takes beside its tokens' time, where that is known."""
    return cost.speculating_ms(drafts) if drafts and isinstance(cost, CostSurface) else 0.0


def scannable(cost: CostModel) -> StepCosts:
    """The model itself if it can be scanned, else through a memo of its points."""
    return cost if isinstance(cost, CostSurface) else PointwiseCosts(cost)


class PointwiseCosts:
    """Any CostModel, asked point by point and taken at its word: it learns nothing and is never stale."""

    def __init__(self, model: CostModel) -> None:
        self._model = model
        self._known: dict[tuple[int, int, int], float] = {}

    def step_ms(self, tokens: int, context: int, sequences: int) -> float:
        point = tokens, context, sequences
        if point not in self._known:
            if len(self._known) >= MOST_POINTS:
                self._known.clear()
            self._known[point] = self._model.step_ms(*point)
        return self._known[point]

    def step_ms_many(self, tokens: IntArray, context: int, sequences: int) -> FloatArray:
        return np.array([self.step_ms(int(count), context, sequences) for count in tokens])

    def step_ms_from(self, first: int, count: int, context: int, sequences: int) -> list[float]:
        return [self.step_ms(tokens, context, sequences) for tokens in range(first, first + count)]

    def draft_ms(self, drafter: str, depth: int, sequences: int) -> float:
        return self._model.draft_ms(drafter, depth, sequences) if depth and sequences else 0.0

    def catch_up_ms(self, drafter: str, tokens: int) -> float:
        return 0.0

    def free_draft_ms(self, sequences: int) -> float:
        return 0.0

    def speculating_ms(self, drafts: int) -> float:
        return 0.0

    def uncertainty(self) -> float:
        return 0.0

    def token_context_ms(self) -> float:
        return 0.0

    def staleness(self, tokens: int, context: int, sequences: int) -> float:
        return 0.0

    def observe(self, record: StepRecord, free: AbstractSet[str], catch_up: Mapping[str, int]) -> None:
        """Nothing to learn."""

    def describe(self) -> Mapping[str, Any]:
        return {"measured": True, "model": type(self._model).__name__}
