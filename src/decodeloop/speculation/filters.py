"""min-p, top-k and top-p: which columns of a row stay. Ties at a border go to the lowest id."""

from __future__ import annotations

import math

import numpy as np

from decodeloop.types import FloatArray, IntArray, SamplingParams

_REACHES = (8.0, math.inf)  # how far under the maximum to look; all the way if that is not enough


def keep(params: SamplingParams, log_weights: FloatArray) -> IntArray | None:
    """Columns kept by min_p, then top_k, then top_p, ascending; None when no filter applies.

    log_weights: [v] float64 after temperature, maximum 0.
    """
    kept: IntArray | None = None
    if params.min_p > 0.0:
        kept = np.flatnonzero(log_weights >= math.log(params.min_p))
    if params.top_k > 0:
        kept = _narrowed(kept, largest(_of(kept, log_weights), params.top_k))
    if params.top_p < 1.0:
        kept = _narrowed(kept, nucleus(_of(kept, log_weights), params.top_p))
    return kept


def largest(values: FloatArray, count: int) -> IntArray:
    """The `count` largest columns (all, if there are fewer), ascending."""
    if count >= len(values):
        return np.arange(len(values))
    near = values
    for reach in _REACHES:
        near = values[values >= values.max() - reach]
        if len(near) >= count:
            break
    return _down_to(values, np.partition(near, len(near) - count)[len(near) - count], count)


def nucleus(log_weights: FloatArray, top_p: float) -> IntArray:
    """The fewest largest columns whose share of the mass reaches top_p, ascending; at least one."""
    weights = np.exp(log_weights)
    wanted = top_p * float(weights.sum())
    near, enough = weights, 0
    for reach in _REACHES:
        near = np.sort(weights[weights >= math.exp(-reach)])[::-1]
        enough = int(np.searchsorted(np.cumsum(near), wanted, side="left")) + 1
        if enough <= len(near):
            return _down_to(weights, near[enough - 1], enough)
    return np.arange(len(weights))


def _down_to(values: FloatArray, border: float, count: int) -> IntArray:
    """The `count` largest columns, given the least of their values; of those equal to it the first ones."""
    chosen = values >= border
    excess = int(np.count_nonzero(chosen)) - count
    if excess > 0:
        chosen[np.flatnonzero(values == border)[-excess:]] = False
    return np.flatnonzero(chosen)


def _of(kept: IntArray | None, log_weights: FloatArray) -> FloatArray:
    return log_weights if kept is None else log_weights[kept]


def _narrowed(kept: IntArray | None, columns: IntArray) -> IntArray:
    return columns if kept is None else kept[columns]
