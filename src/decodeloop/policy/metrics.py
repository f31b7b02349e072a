"""How good probabilities are: proper scores, discrimination, calibration."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from decodeloop.types import FloatArray

ECE_LABELS = 5000  # fewer than these, and a perfect predictor can't be told from a poor one by its ECE


def log_loss(p: FloatArray, y: FloatArray) -> float:
    """Mean negative log likelihood, nats."""
    clipped = np.clip(p, 1e-9, 1.0 - 1e-9)
    return float(-np.mean(y * np.log(clipped) + (1.0 - y) * np.log1p(-clipped)))


def brier(p: FloatArray, y: FloatArray) -> float:
    return float(np.mean(np.square(p - y)))


def auc(p: FloatArray, y: FloatArray) -> float:
    """P(an accepted one was rated above a rejected one), ties half; 0.5 when there is only one kind."""
    positive = float(y.sum())
    negative = len(y) - positive
    if not positive or not negative:
        return 0.5
    _, inverse, counts = np.unique(p, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2.0)[inverse]
    return float((ranks[y > 0].sum() - positive * (positive + 1) / 2.0) / (positive * negative))


@dataclass(frozen=True, slots=True)
class CalibrationError:
    """Root mean squared gap between predicted and observed, over bins of equal counts, sampling noise taken out.

    low, high: 95 % by resampling the bins' label noise.
    """

    error: float
    low: float
    high: float


def calibration_error(p: FloatArray, y: FloatArray, bins: int = 15, resamples: int = 200) -> CalibrationError:
    """The debiased estimator: each bin's squared gap less the variance of its mean (Kumar et al., arXiv 1909.10155).

    Raises ValueError with fewer than two labels a bin.
    """
    if len(p) < 2 * bins:
        raise ValueError(f"{len(p)} labels are too few for {bins} bins")
    order = np.argsort(p, kind="stable")
    groups = np.array_split(order, bins)
    counts = np.array([len(group) for group in groups], dtype=np.float64)
    predicted = np.array([p[group].mean() for group in groups])
    observed = np.array([y[group].mean() for group in groups])
    squared = _debiased(predicted, observed, counts)
    rng = np.random.default_rng(0)
    drawn = rng.binomial(counts.astype(np.int64), observed, size=(resamples, bins)) / counts
    noise = np.array([_debiased(predicted, row, counts) for row in drawn]) - squared
    low, high = squared - np.quantile(noise, 0.975), squared - np.quantile(noise, 0.025)
    return CalibrationError(*(math.sqrt(max(float(value), 0.0)) for value in (squared, low, high)))


def _debiased(predicted: FloatArray, observed: FloatArray, counts: FloatArray) -> float:
    variance = observed * (1.0 - observed) / np.maximum(counts - 1.0, 1.0)
    return float(np.average(np.square(observed - predicted) - variance, weights=counts))
