"""Speculation rules for simulated engines: none, a fixed length, the best by expected acceptance."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decodeloop.evaluation.fleet import Ints
from decodeloop.evaluation.roofline import StraightLines
from decodeloop.policy.allocate import Items, depth_scores
from decodeloop.policy.fair import allocate_fairly
from decodeloop.types import CostModel, FloatArray

DRAFTER = "simulated"
MOST_REMEMBERED = 65_536


def draft_ms(cost: CostModel, depth: int, sequences: int, context: int) -> float:
    """Of a paid drafter. Straight lines know what context costs; other models are asked as CostModels are."""
    if isinstance(cost, StraightLines):
        return cost.draft(depth * sequences, context)
    return cost.draft_ms(DRAFTER, depth, sequences)


class Off:
    def lens(self, classes: Ints, context: int, prefill: int) -> tuple[Ints, float]:
        return np.zeros(len(classes), dtype=np.int64), 0.0


@dataclass(frozen=True, slots=True)
class Fixed:
    """draft_len for everyone, always. paid: whether drafting takes time."""

    cost: CostModel
    draft_len: int
    paid: bool = True

    def lens(self, classes: Ints, context: int, prefill: int) -> tuple[Ints, float]:
        ms = draft_ms(self.cost, self.draft_len, len(classes), context) if self.paid else 0.0
        return np.full(len(classes), self.draft_len, dtype=np.int64), ms


@dataclass(slots=True)
class Best:
    """The depth and the lengths of the highest expected rate, no class slowed by more than `interference`.

    survival: [classes, K] expected, as the classes' records would say. A fleet meets the same batches again and again,
    so answers are remembered per composition and about as much context.
    """

    cost: CostModel
    survival: FloatArray
    interference: float = 0.05
    paid: bool = True
    _known: dict[tuple[bytes, int, int], tuple[Ints, float]] = field(default_factory=dict)

    def lens(self, classes: Ints, context: int, prefill: int) -> tuple[Ints, float]:
        order = np.argsort(classes, kind="stable")
        key = classes[order].tobytes(), round(12 * np.log2(1 + context)), round(4 * np.log2(1 + prefill))
        if key not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = self._decide(classes[order], context, prefill)
        chosen, ms = self._known[key]
        lens = np.empty_like(chosen)
        lens[order] = chosen
        return lens, ms

    def _decide(self, classes: Ints, context: int, prefill: int) -> tuple[Ints, float]:
        count, depths = len(classes), self.survival.shape[1]
        survival = self.survival[classes]
        tokens = prefill + count + np.arange(count * depths + 1)
        ms = np.array([self.cost.step_ms(int(n), context, count) for n in tokens])
        drafting = np.array([draft_ms(self.cost, d, count, context) if self.paid else 0.0 for d in range(depths + 1)])
        if not self.paid:
            found = allocate_fairly(Items(survival), ms, float(ms[0]), self.interference)
            return found.verify_lens, 0.0
        scores = depth_scores(Items(survival), np.ones(count, dtype=bool), ms, drafting)
        for depth in np.argsort(-scores, kind="stable").tolist():
            cut = np.where(np.arange(depths) < depth, survival, 0.0)
            spent = ms[: count * depth + 1] + drafting[depth]
            found = allocate_fairly(Items(cut), spent, float(ms[0]), self.interference)
            least = float(Items(cut).tokens(found.verify_lens).min())
            kept = least * float(ms[0]) >= (1.0 - self.interference) * found.ms
            if depth == 0 or (kept and found.verify_lens.any()):
                return found.verify_lens, float(drafting[depth])
        raise AssertionError("depth 0 is always allowed")
