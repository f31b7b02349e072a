"""Raw log-probabilities: log-softmax of the target's logits before any processing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodeloop.speculation.filters import largest
from decodeloop.types import FloatArray


def log_probabilities(logits: FloatArray, ids: Sequence[int]) -> FloatArray:
    """[len(ids)] float64, natural log. logits: [V] raw."""
    chosen: FloatArray = logits[np.asarray(ids, dtype=np.int64)].astype(np.float64)
    return chosen - _log_total(logits)


def top_log_probabilities(logits: FloatArray, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest (id, log p), likeliest first, equals by ascending id."""
    ids = largest(logits, count).tolist() if count else []
    return list(zip(ids, log_probabilities(logits, ids).tolist(), strict=True))


def _log_total(logits: FloatArray) -> float:
    highest = float(logits.max())
    if not np.isfinite(highest):
        raise FloatingPointError(f"the model's logits hold {highest}")
    return highest + float(np.log(np.exp(logits.astype(np.float64) - highest).sum()))
