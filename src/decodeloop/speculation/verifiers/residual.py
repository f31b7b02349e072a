"""What token-wise and block verification share: how a drafted token compares with p, and what p has left over q."""

from __future__ import annotations

import numpy as np

from decodeloop.speculation.block import Draft
from decodeloop.speculation.sampling import Distribution
from decodeloop.types import FloatArray

LEAST_MASS = 1e-12  # a residual of less is rounding: reached with no more probability than that, and never normalised


def likelihood_ratio(p: Distribution, draft: Draft, i: int) -> float:
    """p(x_i) / q(x_i); 0 where p is 0, ids outside the target's vocabulary included.

    Raises ValueError when x_i can't have been drawn from its q.
    """
    token = draft.tokens[i]
    target = p.prob(token)
    if target == 0.0 or draft.q is None:
        return target
    drafted = float(draft.q[i][token]) if token < len(draft.q[i]) else 0.0
    if not drafted > 0.0:
        raise ValueError(f"drafter {draft.drafter!r}: token {token} has q = {drafted}, it wasn't drawn from that")
    return target / drafted


def residual(p: Distribution, draft: Draft, i: int, reach: float = 1.0) -> tuple[FloatArray, float]:
    """(reach p - q_i)+ as [V], normalised, and its mass before. reach: P_i of block verification, 1 token by token."""
    left = reach * p.probs
    if draft.q is None:
        if 0 <= draft.tokens[i] < len(left):
            left[draft.tokens[i]] = 0.0
    else:
        shared = min(len(left), len(draft.q[i]))
        left[:shared] -= draft.q[i][:shared]
        np.maximum(left, 0.0, out=left)
    mass = float(left.sum())
    return (left / mass if mass >= LEAST_MASS else p.probs), mass
