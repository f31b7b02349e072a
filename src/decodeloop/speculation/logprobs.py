"""Raw log-probabilities: log-softmax of the target's logits before any processing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodeloop.speculation.filters import largest
from decodeloop.types import FloatArray, IntArray


def log_probabilities(logits: FloatArray, ids: Sequence[int] | IntArray) -> FloatArray:
    """[len(ids)] float64, natural log. logits: [V] raw."""
    chosen: FloatArray = logits[np.asarray(ids, dtype=np.int64)].astype(np.float64)
    return chosen - _log_total(logits)


def top_log_probabilities(logits: FloatArray, count: int) -> list[tuple[int, float]]:
    """The `count` likeliest (id, log p), likeliest first, equals by ascending id."""
    if count == 0:
        return []
    ids = largest(logits, count)
    ids = ids[np.argsort(-logits[ids], kind="stable")]
    return list(zip(ids.tolist(), log_probabilities(logits, ids).tolist(), strict=True))


def _log_total(logits: FloatArray) -> float:
    """Good to 1e-6: the exponentials are float32."""
    highest = logits.max()
    if not np.isfinite(highest):
        raise FloatingPointError(f"the model's logits hold {highest}")
    weights = np.exp((logits - highest).astype(np.float32))
    return float(highest) + float(np.log(weights.sum(dtype=np.float64)))
