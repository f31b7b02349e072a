"""Speculation rules for simulated engines: none, a fixed length, the best by the drafters' word, any policy."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decodeloop.evaluation.fleet import Batch, Decided, Outcome
from decodeloop.evaluation.roofline import StraightLines
from decodeloop.policy.allocate import Items, depth_scores, drafts_of
from decodeloop.policy.cost_start import scannable, speculating_ms
from decodeloop.policy.fair import allocate_fairly
from decodeloop.types import CostModel, FloatArray

DRAFTER = "draft_model"  # the paid one; others are free
MOST_REMEMBERED = 16_384


def free_ms(cost: CostModel, sequences: int) -> float:
    """What free drafters take of a step, where that was measured."""
    return scannable(cost).free_draft_ms(sequences)


def draft_ms(cost: CostModel, depth: int, sequences: int, context: int) -> float:
    """Of a paid drafter. Straight lines know what context costs; other models are asked as CostModels are."""
    if isinstance(cost, StraightLines):
        return cost.draft(depth * sequences, context)
    return cost.draft_ms(DRAFTER, depth, sequences)


class Off:
    def decide(self, batch: Batch) -> Decided:
        return Decided(np.zeros(len(batch.requests), dtype=np.int64))

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """draft_len for everyone, or what the drafter has. paid: whether drafting takes time."""

    cost: CostModel
    draft_len: int
    paid: bool = True

    def decide(self, batch: Batch) -> Decided:
        lens = np.minimum(batch.drafts.offered, self.draft_len)
        if not self.paid:
            return Decided(lens, free_ms(self.cost, batch.sequences))
        return Decided(lens, draft_ms(self.cost, self.draft_len, len(lens), batch.context))

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None:
        """Nothing to learn."""


@dataclass(slots=True)
class Best:
    """The depth and the lengths of the highest expected rate, no class slowed by more than `interference`.

    Takes the drafters' word for survival. A fleet meets the same batches again and again, so answers are remembered
    per composition and about as much context.
    """

    cost: CostModel
    interference: float = 0.05
    paid: bool = True
    _known: dict[tuple[bytes, int, int, int], Decided] = field(default_factory=dict)

    def decide(self, batch: Batch) -> Decided:
        survival = batch.drafts.confidence
        order = np.lexsort(survival.T[::-1])
        context, prefill = round(12 * np.log2(1 + batch.context)), round(4 * np.log2(1 + batch.prefill))
        key = survival[order].tobytes(), context, prefill, batch.sequences
        if key not in self._known:
            if len(self._known) >= MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = self._decide(survival[order], batch)
        chosen = self._known[key]
        lens = np.empty_like(chosen.verify_lens)
        lens[order] = chosen.verify_lens
        return Decided(lens, chosen.draft_ms)

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None:
        """It knows what it needs."""

    def _decide(self, survival: FloatArray, batch: Batch) -> Decided:
        count, depths = survival.shape
        most = int(np.count_nonzero(survival))
        tokens = batch.prefill + count + np.arange(most + 1)
        ms = scannable(self.cost).step_ms_many(tokens, batch.context, batch.sequences)
        ms[1:] += speculating_ms(self.cost, drafts_of(survival))
        if not self.paid:
            found = allocate_fairly(Items(survival), ms, float(ms[0]), self.interference)
            return Decided(found.verify_lens, free_ms(self.cost, batch.sequences))
        drafting = np.array([draft_ms(self.cost, d, count, batch.context) for d in range(depths + 1)])
        scores = depth_scores(Items(survival), np.ones(count, dtype=bool), ms, drafting)
        for depth in np.argsort(-scores, kind="stable").tolist():
            cut = np.where(np.arange(depths) < depth, survival, 0.0)
            spent = ms + drafting[depth]
            found = allocate_fairly(Items(cut), spent, float(ms[0]), self.interference)
            least = float(Items(cut).tokens(found.verify_lens).min())
            kept = least * float(ms[0]) >= (1.0 - self.interference) * found.ms
            if depth == 0 or (kept and found.verify_lens.any()):
                return Decided(found.verify_lens, float(drafting[depth]))
        raise AssertionError("depth 0 is always allowed")
