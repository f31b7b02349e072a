"""What drafting costs, per paid drafter. Free drafters run at every step whatever is decided, so they cost nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodeloop.policy.cost_fit import nonnegative_least_squares
from decodeloop.policy.online_linear import OnlineLinear
from decodeloop.types import StepRecord

MAX_DRAFTERS = 64
FORGOTTEN = 256  # steps without a drafter, after which its next times count like its first
READING = 3  # which of the terms is reading skipped tokens
UNMEASURED_PASS = 0.1  # of a plain step: what a draft pass is taken to cost until one was measured


@dataclass(frozen=True, slots=True)
class DraftSample:
    """Measured: `drafter` proposed `depth` tokens for each of `sequences` sequences in `ms`."""

    drafter: str
    depth: int
    sequences: int
    ms: float

    def __post_init__(self) -> None:
        if self.depth < 1 or self.sequences < 1 or not 0.0 <= self.ms < float("inf"):
            raise ValueError(f"no such draft: {self}")


class DraftCosts:
    """ms = a + b depth + c depth sequences + d caught-up tokens, for each paid drafter.

    plain_ms: time of a plain step of one sequence; the yardstick of drafters that were never measured.
    """

    def __init__(self, samples: Sequence[DraftSample], plain_ms: float) -> None:
        self._plain_ms = plain_ms
        self._free = OnlineLinear([0.0, 0.0], [plain_ms, plain_ms], plain_ms / 100)
        self._models: dict[str, OnlineLinear] = {}
        self._last: dict[str, int] = {}
        for name in dict.fromkeys(sample.drafter for sample in samples):
            self._models[name] = self._fitted([sample for sample in samples if sample.drafter == name])

    def ms(self, drafter: str, depth: int, sequences: int, catch_up: int = 0) -> float:
        """Time for `sequences` drafts of `depth` tokens, after catching up with `catch_up` tokens in all."""
        if depth == 0 or sequences == 0:
            return 0.0
        return self._model(drafter).predict(_features(depth, sequences, catch_up))

    def free_ms(self, rows: int) -> float:
        """What the free drafters take at every step of `rows` sequences, played or not."""
        return self._free.predict([1.0, float(rows)])

    def staleness(self, drafter: str, step: int) -> float:
        """Steps since it was last seen at work; inf if never."""
        return step - self._last[drafter] if drafter in self._last else float("inf")

    def observe(self, record: StepRecord, free: AbstractSet[str], catch_up: Mapping[str, int]) -> None:
        """free: drafters that cost nothing. catch_up: per paid drafter, tokens it had to read first."""
        depths: dict[str, int] = {}
        counts: dict[str, int] = {}
        for row in record.rows:
            name = row.drafter
            if name is not None and name not in free and row.draft_len:
                depths[name] = max(depths.get(name, 0), row.draft_len)
                counts[name] = counts.get(name, 0) + 1
        rows = float(len(record.rows))
        if not depths:
            self._free.learn([1.0, rows], record.draft_ms)
            return
        paid_ms = max(record.draft_ms - self._free.predict([1.0, rows]), 0.0)
        expected = {name: self.ms(name, depths[name], counts[name], catch_up.get(name, 0)) for name in depths}
        total = sum(expected.values())
        for name, own in expected.items():
            share = own / total if total > 0.0 else 1.0 / len(expected)
            model, depth, count, unread = self._model(name), depths[name], counts[name], catch_up.get(name, 0)
            if self.staleness(name, record.step) > FORGOTTEN:
                model.loosen()
                if unread:  # took what drafting leaves at most: not drafting is cheap then, but reading is
                    model.limit(READING, (paid_ms * share - self.ms(name, depth, count)) / unread)
            model.learn(_features(depth, count, unread), paid_ms * share)
            self._last[name] = record.step

    def describe(self) -> Mapping[str, Any]:
        return {
            name: {
                "ms": [round(float(value), 4) for value in model.theta],
                "terms": ["draft", "position", "position and sequence", "caught-up token"],
                "measured_steps": model.visits,
            }
            for name, model in self._models.items()
        }

    def _model(self, drafter: str) -> OnlineLinear:
        if drafter not in self._models:
            if len(self._models) >= MAX_DRAFTERS:
                del self._models[next(iter(self._models))]
            pass_ms = UNMEASURED_PASS * self._plain_ms
            self._models[drafter] = _online([0.0, pass_ms, 0.0], pass_ms, pass_ms)
        return self._models[drafter]

    def _fitted(self, samples: Sequence[DraftSample]) -> OnlineLinear:
        design = np.array([_features(sample.depth, sample.sequences, 0)[:3] for sample in samples])
        measured = np.array([sample.ms for sample in samples])
        scale = np.abs(design).max(axis=0)
        solution = nonnegative_least_squares(design / scale, measured) / scale
        residual = float(np.median(np.abs(design @ solution - measured)))
        pass_ms = max(float(solution[1] + solution[2]), float(measured.min()) / max(s.depth for s in samples))
        return _online([float(value) for value in solution], pass_ms, max(residual, 0.02 * float(measured.mean())))


def _online(solution: Sequence[float], pass_ms: float, residual_ms: float) -> OnlineLinear:
    """Starts at `solution`; reading a skipped token is taken for a tenth of a pass (passes are memory-bound)."""
    pass_ms = max(pass_ms, 1e-6)
    return OnlineLinear(
        [*solution, pass_ms / 10], [pass_ms, pass_ms, pass_ms / 4, pass_ms / 50], max(residual_ms, pass_ms / 50)
    )


def _features(depth: int, sequences: int, catch_up: int) -> list[float]:
    return [1.0, float(depth), float(depth * sequences), float(catch_up)]
