"""The step-time surface that measured points speak for: monotone in tokens, stairs kept.

    T(tokens, context, sequences) = base(tokens) + a context + b tokens context / sequences + c sequences

`base` is any non-decreasing function: a sum of non-negative steps, one at each measured number of tokens. The rest is
attention (reading the cache: a; comparing each token with its own context: b) and per-sequence work (c). All
coefficients are non-negative, so one non-negative least squares gives the whole surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decodeloop.types import FloatArray


@dataclass(frozen=True, slots=True)
class CostSample:
    """A measured forward: `tokens` packed tokens of `sequences` sequences, `context` cached tokens in all."""

    tokens: int
    context: int
    sequences: int
    ms: float

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.sequences < 1 or self.context < 0 or not 0.0 < self.ms < float("inf"):
            raise ValueError(f"no such step: {self}")


@dataclass(frozen=True, slots=True)
class Surface:
    """knots: [J] measured numbers of tokens. base: [J] ms, non-decreasing. spread: relative, of the residuals."""

    knots: FloatArray
    base: FloatArray
    context_ms: float
    token_context_ms: float
    sequence_ms: float
    spread: float

    def ms(self, tokens: FloatArray, context: float, sequences: float) -> FloatArray:
        """[...] ms; linear between knots, and beyond the last along the slope of the last octave."""
        base = np.interp(tokens, self.knots, self.base) + self.slope * np.maximum(tokens - self.knots[-1], 0.0)
        per_token = self.token_context_ms * context / sequences
        surface: FloatArray = base + per_token * tokens + self.context_ms * context + self.sequence_ms * sequences
        return surface

    @property
    def slope(self) -> float:
        """ms a token beyond what was measured: the last octave's, never more than proportional growth."""
        last, ms = float(self.knots[-1]), float(self.base[-1])
        octave = float(np.interp(last / 2, self.knots, self.base))
        return min((ms - octave) / (last / 2), ms / last)


ROBUST_ROUNDS = 4
OUTLYING = 2.5  # standard deviations beyond which a sample loses weight


def fit(samples: Sequence[CostSample]) -> Surface:
    """The surface nearest to the samples in relative error, outliers (noisy neighbours) discounted.

    Raises:
        ValueError: there are no samples.
    """
    if not samples:
        raise ValueError("a cost surface needs at least one measured step")
    tokens = np.array([sample.tokens for sample in samples], dtype=np.float64)
    context = np.array([sample.context for sample in samples], dtype=np.float64)
    sequences = np.array([sample.sequences for sample in samples], dtype=np.float64)
    ms = np.array([sample.ms for sample in samples], dtype=np.float64)

    knots = np.unique(tokens)
    stairs = (tokens[:, None] >= knots).astype(np.float64)
    design = np.column_stack([stairs, context, tokens * context / sequences, sequences])
    scale = np.maximum(np.abs(design / ms[:, None]).max(axis=0), 1e-300)
    relative = design / ms[:, None] / scale
    weights = np.ones(len(ms))
    residual = np.zeros(len(ms))
    for _ in range(ROBUST_ROUNDS):
        root = np.sqrt(weights)
        solution = nonnegative_least_squares(relative * root[:, None], root)
        residual = 1.0 - relative @ solution
        limit = max(OUTLYING * 1.4826 * float(np.median(np.abs(residual))), 1e-9)
        weights = limit / np.maximum(np.abs(residual), limit)
    coefficients = solution / scale
    context_ms, token_context_ms, sequence_ms = (float(value) for value in coefficients[len(knots) :])
    spread = 1.4826 * float(np.median(np.abs(residual)))
    base = np.cumsum(coefficients[: len(knots)])
    return Surface(knots, base, context_ms, token_context_ms, sequence_ms, spread)


def nonnegative_least_squares(a: FloatArray, b: FloatArray) -> FloatArray:
    """argmin |a x - b| over x >= 0 (Lawson and Hanson's active set). a: [M, J], b: [M] -> [J]."""
    columns = a.shape[1]
    x, free = np.zeros(columns), np.zeros(columns, dtype=bool)
    tolerance = 1e-10 * max(1.0, float(np.abs(a.T @ b).max()))
    for _ in range(3 * columns):
        gradient = np.where(free, -np.inf, a.T @ (b - a @ x))
        enters = int(np.argmax(gradient))
        if gradient[enters] <= tolerance:
            break
        free[enters] = True
        while True:
            trial = np.zeros(columns)
            trial[free] = np.linalg.lstsq(a[:, free], b, rcond=None)[0]
            negative = free & (trial <= 0.0)
            if not negative.any():
                break
            step = float(np.min(x[negative] / np.maximum(x[negative] - trial[negative], 1e-300)))
            x = x + step * (trial - x)
            free &= x > 1e-14
            x[~free] = 0.0
        x = trial
    return x


def held_out_errors(samples: Sequence[CostSample], folds: int = 5) -> FloatArray:
    """[M] relative error of each sample against the surface fitted without its fold.

    Folds are dealt in turn over the samples sorted by tokens, so that every fold spans the range.
    """
    order = sorted(range(len(samples)), key=lambda i: (samples[i].tokens, samples[i].context, samples[i].sequences))
    errors = np.zeros(len(samples))
    for fold in range(folds):
        held = order[fold::folds]
        kept = [samples[i] for i in order if i not in set(held)]
        if not held or not kept:
            continue
        errors[held] = relative_errors(fit(kept), [samples[i] for i in held])
    return errors


def relative_errors(surface: Surface, samples: Sequence[CostSample]) -> FloatArray:
    """[M] |predicted - measured| / measured."""
    predicted = np.array([surface.ms(np.array([s.tokens]), s.context, s.sequences)[0] for s in samples])
    measured = np.array([sample.ms for sample in samples])
    errors: FloatArray = np.abs(predicted - measured) / measured
    return errors
