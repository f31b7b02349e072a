"""min-p, top-k and top-p: which columns of a row stay. Ties at a border go to the lowest id."""

from __future__ import annotations

import math

import numpy as np

from decodeloop.speculation.distribution import IntArray
from decodeloop.types import FloatArray, SamplingParams

_FIRST_LOOK = 256  # columns sorted before it is known how many top-p needs


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


def largest(log_weights: FloatArray, count: int) -> IntArray:
    """The `count` largest columns (all, if there are fewer), by descending weight, then ascending column."""
    columns: IntArray = np.arange(len(log_weights))
    if count < len(log_weights):
        border = np.partition(log_weights, len(log_weights) - count)[len(log_weights) - count]
        columns = np.flatnonzero(log_weights >= border)
    return columns[np.argsort(-log_weights[columns], kind="stable")[:count]]


def nucleus(log_weights: FloatArray, top_p: float) -> IntArray:
    """The fewest largest columns whose share of the mass reaches top_p; at least one. In the order of `largest`."""
    wanted = top_p * float(np.exp(log_weights).sum())
    count = _FIRST_LOOK
    while True:
        columns = largest(log_weights, count)
        mass = np.cumsum(np.exp(log_weights[columns]))
        enough = int(np.searchsorted(mass, wanted, side="left")) + 1
        if enough <= len(columns) or count >= len(log_weights):
            return columns[:enough]
        count *= 8


def _of(kept: IntArray | None, log_weights: FloatArray) -> FloatArray:
    return log_weights if kept is None else log_weights[kept]


def _narrowed(kept: IntArray | None, columns: IntArray) -> IntArray:
    columns = np.sort(columns)
    return columns if kept is None else kept[columns]
