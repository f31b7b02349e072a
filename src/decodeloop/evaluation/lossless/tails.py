"""Tail probabilities that tests and their power need: chi-squared (central or not) and binomial. Without scipy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from decodeloop.types import FloatArray

_TINY = 1e-300


def chi2_tail(x: float, df: float, noncentrality: float = 0.0) -> float:
    """P(X > x) for a chi-squared X with `df` degrees of freedom, shifted by `noncentrality`."""
    if noncentrality <= 0.0:
        return _upper_gamma(df / 2.0, x / 2.0)
    mean = noncentrality / 2.0  # a Poisson mixture of central ones
    reach = 12.0 * math.sqrt(mean) + 20.0
    first, last = max(0, int(mean - reach)), int(mean + reach)
    log_weights = [j * math.log(mean) - mean - math.lgamma(j + 1.0) for j in range(first, last + 1)]
    tails = (_upper_gamma(df / 2.0 + j, x / 2.0) for j in range(first, last + 1))
    return min(1.0, sum(math.exp(w) * tail for w, tail in zip(log_weights, tails, strict=True)))


def chi2_critical(alpha: float, df: float) -> float:
    """The x with chi2_tail(x, df) = alpha."""
    return _decreasing(lambda x: chi2_tail(x, df) - alpha, df)


def noncentrality_for(power: float, alpha: float, df: float) -> float:
    """How far a chi-squared test at `alpha` must be shifted to fail with probability `power`."""
    critical = chi2_critical(alpha, df)
    return _decreasing(lambda shift: power - chi2_tail(critical, df, shift), df)


def binomial_pmf(n: int, p: float) -> FloatArray:
    """[n + 1] P(X = k)."""
    if p <= 0.0 or p >= 1.0:
        certain: FloatArray = np.zeros(n + 1)
        certain[0 if p <= 0.0 else n] = 1.0
        return certain
    k = np.arange(n + 1)
    steps = np.concatenate([[0.0], np.cumsum(np.log(np.arange(n, 0, -1)) - np.log(np.arange(1, n + 1)))])
    pmf: FloatArray = np.exp(steps + k * math.log(p) + (n - k) * math.log1p(-p))
    return pmf


def binomial_tail(k: int, n: int, p: float) -> float:
    """P(X >= k)."""
    return 1.0 if k <= 0 else float(min(1.0, binomial_pmf(n, p)[k:].sum()))


def share_below(k: int, n: int, level: float) -> float:
    """Clopper-Pearson: the true share behind k of n is at most this, at one-sided confidence `level`."""
    if k >= n:
        return 1.0
    return _decreasing(lambda p: float(binomial_pmf(n, p)[: k + 1].sum()) - (1.0 - level), 0.5, most=1.0)


def share_above(k: int, n: int, level: float) -> float:
    """Clopper-Pearson: the true share behind k of n is at least this, at one-sided confidence `level`."""
    return 1.0 - share_below(n - k, n, level)


def _decreasing(f: Callable[[float], float], guess: float, most: float = math.inf) -> float:
    """The root of a decreasing f on 0..most."""
    low, high = 0.0, min(max(guess, 1.0), most)
    while high < most and f(high) > 0.0:
        low, high = high, 2.0 * high
    while high - low > 1e-10 * max(1.0, high):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if f(middle) > 0.0 else (low, middle)
    return 0.5 * (low + high)


def _upper_gamma(a: float, x: float) -> float:
    """The regularised Q(a, x): a series below a + 1, Lentz's continued fraction above."""
    if x <= 0.0:
        return 1.0
    front = math.exp(a * math.log(x) - x - math.lgamma(a))
    if x < a + 1.0:
        term = total = 1.0 / a
        n = a
        while term > total * 1e-16:
            n += 1.0
            term *= x / n
            total += term
        return max(0.0, 1.0 - total * front)
    b = x + 1.0 - a
    c, d = 1.0 / _TINY, 1.0 / b
    fraction = d
    for i in range(1, 100_000):
        step = -i * (i - a)
        b += 2.0
        d = 1.0 / _away(step * d + b)
        c = _away(b + step / c)
        fraction *= c * d
        if abs(c * d - 1.0) < 1e-15:
            break
    return front * fraction


def _away(value: float) -> float:
    return value if abs(value) > _TINY else _TINY
