"""What a step costs on this machine: measured at start, refined by every step since."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from decodeloop.policy.cost_curve import CELL_TRUST, CELLS, Curve, Point, Region, nearness
from decodeloop.policy.cost_fit import CostSample, Surface, fit
from decodeloop.policy.draft_cost import DraftCosts, DraftSample
from decodeloop.policy.online_linear import OnlineLinear
from decodeloop.types import CostModel, FloatArray, IntArray, StepRecord

SCHEMA = "decodeloop.cost/1"
FAR_TOKENS = 1e6
DRIFT_GAIN = 0.05  # of the whole machine: a neighbour comes and goes within tens of steps
SHOCK = 0.3  # log ratio beyond which a step says no more than that it was slow
REFRESH_STEPS = 8  # after which what was learned shows in the curves
MOST_CURVES = 64
MOST_POINTS = 4096
FIRST_STEPS, FREE_STEPS = 64, 4  # free drafting: at first learned always, then now and then
SPECULATING = 0.05  # of a plain step: what deciding on drafts is taken to cost, and on 8 of them again, until seen


class StepCosts(CostModel, Protocol):
    """A cost model that policies can scan, teach and ask how sure it is."""

    def step_ms_many(self, tokens: IntArray, context: int, sequences: int) -> FloatArray: ...

    def step_ms_from(self, first: int, count: int, context: int, sequences: int) -> list[float]:
        """[count] step_ms of `first` tokens and each one more."""
        ...

    def token_context_ms(self) -> float:
        """What a verified token costs for each context token of its sequence."""
        ...

    def free_draft_ms(self, sequences: int) -> float:
        """What drafting takes at every step, whatever is decided."""
        ...

    def speculating_ms(self, drafts: int) -> float:
        """What a step with that many drafts takes beside its tokens' time: deciding, cutting, packing, learning."""
        ...

    def uncertainty(self) -> float:
        """By what share two step times' ratio may be wrong: one standard deviation."""
        ...

    def catch_up_ms(self, drafter: str, tokens: int) -> float:
        """What a paused drafter pays to read `tokens` that it missed."""
        ...

    def staleness(self, tokens: int, context: int, sequences: int) -> float:
        """Steps since a step like this was seen; inf if never."""
        ...

    def observe(self, record: StepRecord, free: AbstractSet[str], catch_up: Mapping[str, int]) -> None: ...

    def describe(self) -> Mapping[str, Any]: ...


class CostSurface:
    """T(tokens, context, sequences) of everything in a step but drafting, and T_draft.

    A fit of measured forwards; times what the machine as a whole and each region of the surface have since turned out
    to be (slow, clipped, in logarithms: a noisy neighbour moves the first and hardly the second); plus sampling and
    overhead, learned from the steps, and what those in which drafts are verified take more. Non-decreasing in tokens.
    """

    def __init__(self, samples: Sequence[CostSample], draft_samples: Sequence[DraftSample] = ()) -> None:
        """Raises ValueError without samples."""
        self._samples, self._draft_samples = tuple(samples), tuple(draft_samples)
        self._surface: Surface = fit(samples)
        self._knots = np.unique(
            np.concatenate([self._surface.knots, 2.0 ** (np.arange(CELLS) / 2), [FAR_TOKENS, 2 * FAR_TOKENS]])
        )
        self._nearness = nearness(2.0 * np.log2(self._knots))
        self._cell_knots = np.searchsorted(self._knots, 2.0 ** (np.arange(CELLS) / 2))
        self._base = self._surface.ms(self._knots, 0.0, 1.0) - self._surface.sequence_ms
        plain_ms = min(sample.ms for sample in samples)
        self._base_at = lru_cache(MOST_POINTS)(lambda tokens: float(np.interp(tokens, self._knots, self._base)))
        self._floor_ms = plain_ms / 20
        a_draft_ms = SPECULATING * plain_ms / 8
        # Of a step, each sequence, each token, and of a step in which drafters were asked; with drafts, of a step and
        # each draft. Of a sum neither part can be learned: the former is known from steps without drafts alone.
        self._rest = OnlineLinear([0.0] * 4, [plain_ms / 4, plain_ms / 4, plain_ms / 16, plain_ms / 4], plain_ms / 50)
        self._speculating = OnlineLinear(
            [SPECULATING * plain_ms, a_draft_ms], [plain_ms / 4, a_draft_ms], plain_ms / 20
        )
        self._drafts = DraftCosts(draft_samples, plain_ms)
        self._drift = 0.0
        self._regions: dict[tuple[int, int], Region] = {}
        self._step = self._seen = 0
        self._curves: dict[tuple[int, int], Curve] = {}  # by (about as much context, sequences)
        self._points: dict[tuple[int, int, int], Point] = {}  # by (tokens, ..), since asking is most of the time
        self._last: dict[tuple[int, int], int] = {}  # (about as many sequences, cell of tokens) -> step last seen
        for sample in samples:
            self._last[_octave(sample.sequences), _cell(sample.tokens)] = 0

    def step_ms(self, tokens: int, context: int, sequences: int) -> float:
        key = tokens, context.bit_length(), sequences
        point = self._points.get(key)
        if point is None:
            if len(self._points) >= MOST_POINTS:
                self._points.clear()
            point = self._points[key] = self._curve(context, sequences).point(tokens)
        ms, slope, near = point
        return ms + slope * (context - near)

    def step_ms_many(self, tokens: IntArray, context: int, sequences: int) -> FloatArray:
        """[...] as step_ms, for each of `tokens`."""
        return self._curve(context, sequences).ms_at(tokens, context)

    def step_ms_from(self, first: int, count: int, context: int, sequences: int) -> list[float]:
        return self._curve(context, sequences).ms_from(first, count, context)

    def bounds_ms(self, tokens: int, context: int, sequences: int) -> tuple[float, float]:
        """It should lie between these: two spreads, and beyond the measured range from flat to proportional."""
        ms, last = self.step_ms(tokens, context, sequences), float(self._surface.knots[-1])
        low = high = ms
        if tokens > last:
            low = self.step_ms(int(last), context, sequences)
            high = max(ms, low * tokens / last)
        margin = math.exp(2.0 * max(self._surface.spread, 0.01))
        return low / margin, high * margin

    def draft_ms(self, drafter: str, depth: int, sequences: int) -> float:
        return self._drafts.ms(drafter, depth, sequences)

    def catch_up_ms(self, drafter: str, tokens: int) -> float:
        return self._drafts.ms(drafter, 1, 1, tokens) - self._drafts.ms(drafter, 1, 1)

    def free_draft_ms(self, sequences: int) -> float:
        return self._drafts.free_ms(sequences)

    def speculating_ms(self, drafts: int) -> float:
        return self._speculating.predict([1.0, drafts])

    def uncertainty(self) -> float:
        return self._surface.spread

    def token_context_ms(self) -> float:
        return self._surface.token_context_ms

    def staleness(self, tokens: int, context: int, sequences: int) -> float:
        last = self._last.get((_octave(sequences), _cell(tokens)))
        return math.inf if last is None else float(self._step - last)

    def observe(self, record: StepRecord, free: AbstractSet[str], catch_up: Mapping[str, int]) -> None:
        """Learn from a measured step. Records without rows or with impossible times teach nothing."""
        times = (record.draft_ms, record.verify_ms, record.sample_ms, record.overhead_ms)
        if not record.rows or record.verify_ms <= 0.0 or not all(math.isfinite(ms) and ms >= 0.0 for ms in times):
            return
        self._step = max(self._step, record.step)
        self._seen += 1
        if self._seen % REFRESH_STEPS == 0:
            self._forget_curves()
        tokens = sum(row.prefill_tokens or 1 + row.verify_len for row in record.rows)
        self._learn_forward(tokens, record.load.context_tokens, len(record.rows), record.verify_ms)
        thorough = self._seen <= FIRST_STEPS or self._seen % FREE_STEPS == 0
        drafts = sum(row.draft_len > 0 for row in record.rows)
        asked = float(any(row.shadow_match for row in record.rows))
        features, beside_ms = [1.0, len(record.rows), tokens, asked], record.sample_ms + record.overhead_ms
        if drafts:
            self._speculating.learn([1.0, drafts], beside_ms - self._rest.predict([*features[:3], 0.0]))
        else:
            self._rest.learn(features, beside_ms)
        if thorough or any(row.draft_len and row.drafter not in free for row in record.rows):
            self._drafts.observe(record, free, catch_up)

    def slow(self, ratio: float) -> None:
        """Take the machine to be so many times as slow as it is taken to be."""
        self._drift += math.log(ratio)
        self._forget_curves()

    def describe(self) -> Mapping[str, Any]:
        shape = self._surface
        return {
            "measured": True,
            "samples": len(self._samples),
            "spread": round(shape.spread, 4),
            "tokens": [int(tokens) for tokens in shape.knots],
            "ms": [round(float(ms), 4) for ms in shape.base],
            "ms_per_context_token": shape.context_ms,
            "ms_per_token_and_context_token": shape.token_context_ms,
            "ms_per_sequence": shape.sequence_ms,
            "sampling_and_overhead_ms": [round(float(ms), 5) for ms in self._rest.theta],
            "speculating_ms": [round(float(ms), 5) for ms in self._speculating.theta],
            "drift": round(math.expm1(self._drift), 4),
            "cells_visited": sum(int((region.visits > 0).sum()) for region in self._regions.values()),
            "drafters": self._drafts.describe(),
        }

    def to_json(self) -> dict[str, Any]:
        """The measured points, as plain data. What steps have taught since is of this run alone."""
        return {
            "schema": SCHEMA,
            "samples": [[s.tokens, s.context, s.sequences, s.ms] for s in self._samples],
            "draft_samples": [[s.drafter, s.depth, s.sequences, s.ms] for s in self._draft_samples],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> CostSurface:
        """Raises ValueError when `data` is not what to_json gives."""
        schema = data.get("schema") if isinstance(data, Mapping) else None
        if schema != SCHEMA:
            raise ValueError(f"not a cost surface: schema {schema!r}, expected {SCHEMA!r}")
        try:
            samples = [CostSample(*row) for row in data["samples"]]
            drafts = [DraftSample(*row) for row in data["draft_samples"]]
        except (KeyError, TypeError) as error:
            raise ValueError(f"not a cost surface: {error}") from error
        return cls(samples, drafts)

    def _curve(self, context: int, sequences: int) -> Curve:
        """What a few steps teach hardly shows, so a curve serves for a while, and for contexts of about the size."""
        key = context.bit_length(), sequences
        curve = self._curves.get(key)
        if curve is None:
            if len(self._curves) >= MOST_CURVES:
                self._forget_curves()
            curve = self._curves[key] = self._computed(context, sequences)
        return curve

    def _forget_curves(self) -> None:
        self._curves.clear()
        self._points.clear()

    def _computed(self, context: int, sequences: int) -> Curve:
        shape = self._surface
        near = (1 << context.bit_length()) >> 1  # the least of those that share the curve: times rise from there
        slope = shape.context_ms + (shape.token_context_ms / sequences) * self._knots
        fitted = self._base + slope * near + shape.sequence_ms * sequences
        risen = np.exp(self._drift + self._region(context, sequences).biases())
        per_step, per_sequence, per_token, _ = self._rest.theta
        ms = np.maximum.accumulate(np.maximum(fitted, self._floor_ms) * risen) + (per_step + per_sequence * sequences)
        return Curve(self._knots, ms + per_token * self._knots, np.maximum.accumulate(slope * risen), near)

    def _learn_forward(self, tokens: int, context: int, sequences: int, ms: float) -> None:
        region, cell = self._region(context, sequences), _cell(tokens)
        shape = self._surface
        fitted = self._base_at(tokens) + shape.sequence_ms * sequences
        fitted += (shape.context_ms + shape.token_context_ms * tokens / sequences) * context
        bias = region.bias_at(int(self._cell_knots[cell]))
        surprise = math.log(ms / max(fitted, self._floor_ms)) - self._drift - bias
        surprise = min(max(surprise, -SHOCK), SHOCK)
        # A step unlike any before it says that the surface was wrong there, not that the machine has slowed.
        visits = float(region.visits[cell])
        self._drift += DRIFT_GAIN * (1.0 if tokens <= sequences else visits / (visits + CELL_TRUST)) * surprise
        region.learn(cell, surprise)
        self._last[_octave(sequences), cell] = self._step

    def _region(self, context: int, sequences: int) -> Region:
        key = _octave(sequences), round(math.log2(1 + max(context, 0) / max(sequences, 1)) / 2)
        if key not in self._regions:
            self._regions[key] = Region(self._nearness)
        return self._regions[key]


def _octave(sequences: int) -> int:
    return round(math.log2(max(sequences, 1)))


def _cell(tokens: int) -> int:
    return min(round(2.0 * math.log2(max(tokens, 1))), CELLS - 1)
