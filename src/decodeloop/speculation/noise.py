"""Gumbel noise as a function of (key, position, target token id), and the argmax draws made with it.

The draw is defined to the last bit, so that every implementation returns the same token:

    hi, lo  lane (id mod 4) of Philox4x32-10 at counter (id div 4, position, domain, 0); lo's domain is hi's plus one
    n       hi 2^32 + lo, and its complement m = 2^64 - 1 - n
    u       (n + 1/2) 2^-64, uniform on (0, 1), and w = 1 - u = (m + 1/2) 2^-64
    E       exponential: -log1p(-w) where m < 2^62, else -log(u)
    G       -log(E), Gumbel
    score   log_weights[id] + G; the token is the lowest id among those with the highest score

in float64, in the order written below, with +, -, *, / and exponent manipulation only (no fused multiply-add). Small E
wins, so small E is what is exact: w is never 0, E never 0 or infinite.

How far the draw's law is from p (total variation, with ideal words): at most V 2^-64 + 2^-42, under 1e-12 for any V in
use. The first part is the grid of u: given the other tokens' noise, a token wins iff its w is under some threshold, and
the grid moves the probability of that by at most 2^-64 (half a cell, and as much for ties); replace the V noises one by
one. The second is rounding: if every score is off by at most d, the law moves by at most sum_v p_v (1 - p_v) 2d <= 2d,
and here d < 2^-43, since scores that can win are under 128 in size and few operations lead to one.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from decodeloop.speculation.distribution import Distribution
from decodeloop.speculation.philox import WordArray, philox, philox_rows
from decodeloop.types import FloatArray, IntArray

Key = tuple[npt.ArrayLike, npt.ArrayLike]

HIGHEST = 45.1  # above -log(2^-65), the greatest G
LOWEST = -3.9  # below -log(65 log 2), the least G
_WORD = 2**32
_FEW = 16  # ids for which plain integers are faster than arrays
_SQRT_HALF = 0.7071067811865476
_LN2_HIGH = 2977044471 * 2.0**-32  # log 2 = high + low; high times any exponent is exact
_LN2_LOW = 1.9082149292705877e-10
_SERIES = tuple(1.0 / (2 * j + 1) for j in range(12, 0, -1))


def log(x: FloatArray) -> FloatArray:
    """Natural logarithm of positive normal float64, to a few units in the last place."""
    mantissa, exponent = np.frexp(x)
    small = mantissa < _SQRT_HALF
    mantissa = np.where(small, mantissa * 2.0, mantissa)
    twos = np.where(small, exponent - 1, exponent).astype(np.float64)
    result: FloatArray = twos * _LN2_HIGH + (_log_near_one(mantissa - 1.0) + twos * _LN2_LOW)
    return result


def _log_near_one(f: FloatArray) -> FloatArray:
    """log(1 + f) for -0.3 < f < 0.42: 2 atanh(s) with s = f / (2 + f), by its power series."""
    s = f / (2.0 + f)
    z = s * s
    tail = np.full_like(s, _SERIES[0])
    for coefficient in _SERIES[1:]:
        tail = tail * z + coefficient
    result: FloatArray = 2.0 * s + 2.0 * s * (tail * z)
    return result


def gumbel(high: WordArray, low: WordArray) -> FloatArray:
    """G of the words hi and lo."""
    n = (high.astype(np.uint64) << np.uint64(32)) | low
    m = ~n
    u = (n.astype(np.float64) + 0.5) * 2.0**-64
    w = (m.astype(np.float64) + 0.5) * 2.0**-64
    near_one = m < np.uint64(2**62)
    exponential = np.where(near_one, -_log_near_one(np.where(near_one, -w, 0.0)), -log(u))
    return -log(exponential)


def words(key: Key, position: npt.ArrayLike, domain: int, ids: npt.ArrayLike) -> WordArray:
    """One random word for each target token id; ids, positions and keys broadcast against each other."""
    ids = np.asarray(ids, dtype=np.uint64)
    blocks = philox_rows((ids >> np.uint64(2), position, domain, 0), key)
    lanes = np.broadcast_to((ids & np.uint64(3)).astype(np.int64), blocks.shape[:-1])
    chosen: WordArray = np.take_along_axis(blocks, lanes[..., None], axis=-1)[..., 0]
    return chosen


def gumbel_argmax(p: Distribution, key: tuple[int, int], position: int, domain: int) -> int:
    """The token with the highest score: the same as if every score were evaluated, but most are ruled out by bounds.

    1. G lies between LOWEST and HIGHEST: a token further under the likeliest than their distance can't win.
    2. hi alone bounds a score from above; the score of the token with the highest bound is itself bounded from below:
       tokens whose upper bound is under that can't win. One or two are left as a rule, and only they need lo.
    """
    log_weights, ids = p.log_weights, p.token_ids
    near = log_weights >= LOWEST - HIGHEST
    if np.count_nonzero(near) < len(near):
        columns = np.flatnonzero(near)
        log_weights, ids = log_weights[columns], columns if ids is None else ids[columns]
    if len(log_weights) == 1 and ids is not None:
        return int(ids[0])
    high = _row_words(key, position, domain, ids, p.vocab_size)
    bounds = _most(log_weights, high)
    first = int(bounds.argmax())
    left = np.flatnonzero(bounds >= log_weights[first] + _least(int(high[first])))
    if len(left) > 1:
        low = _row_words(key, position, domain + 1, left if ids is None else ids[left], p.vocab_size)
        scores = log_weights[left] + gumbel(high[left], low)
        first = int(left[scores.argmax()])
    return first if ids is None else int(ids[first])


def _row_words(key: tuple[int, int], position: int, domain: int, ids: IntArray | None, vocab_size: int) -> WordArray:
    """`words` (ids None: of all V), the cheapest way: one by one, at once, or at four ids a Philox call."""
    if ids is not None and len(ids) <= _FEW:
        each = [philox((token >> 2, position, domain, 0), key)[token & 3] for token in ids.tolist()]
        return np.array(each, dtype=np.uint32)
    if ids is not None and len(ids) * 4 < vocab_size:
        return words(key, position, domain, ids)
    blocks = np.arange((vocab_size + 3) // 4)
    every = philox_rows((blocks, position, domain, 0), key).reshape(-1)
    return every[:vocab_size] if ids is None else every[ids]


def _most(log_weights: FloatArray, high: WordArray) -> FloatArray:
    """[v] float32 upper bounds of the scores from hi alone, mostly less than 0.1 too high.

    E >= w >= c 2^-32 with c = 2^32 - 1 - hi; and a float's exponent and mantissa bits, read as one integer, are a
    piecewise linear log2, nowhere above the true one. The roundings to float32 add up to under 5e-5: see `slack`.
    """
    slack = 1e-4
    log2_times = (~high).astype(np.float32).view(np.int32).astype(np.float32)
    log2_times *= np.float32(-math.log(2) * 2.0**-23)
    log2_times += np.float32((32 + 127) * math.log(2) + slack)
    log2_times += log_weights.astype(np.float32)
    return log2_times


def _least(high: int) -> float:
    """A lower bound of G from hi alone: that of lo = 0."""
    least_u = (high + 2.0**-33) / _WORD
    greatest_w = (_WORD - high) / _WORD
    exponential = -math.log1p(-greatest_w) if greatest_w < 0.5 else -math.log(least_u)
    return -math.log(exponential) - 1e-9
