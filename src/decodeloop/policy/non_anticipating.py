"""Lengths for sampled drafts whose verifier is exact only if a token's own value doesn't decide whether it is verified.

Under rejection and block verification, "at least k tokens are verified" may depend on the context and x_<k, never on
x_k or what is computed from it (DSpark, arXiv 2607.05147, appendix A). The optimum over all lengths given this step's
scores is therefore not allowed; two forms are, whose yardstick is fixed before the step's tokens are drawn:

- a stale price: stop before k when the survival s_k(x_<k) falls below it;
- a stale quantity: the B largest survivals, with B from before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from decodeloop.policy.allocate import Allocation
from decodeloop.types import FloatArray, IntArray, Knowledge

MANY = 8  # restricted requests from which a quantity is steadier than a price


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What was fixed before drafting. rows: [N] which requests are bound by it.

    lens: [N] lengths by the record alone. price: the least survival worth verifying. total: of the bound rows.
    """

    rows: npt.NDArray[np.bool_]
    lens: IntArray
    price: float
    total: int

    def cut(self, survival: FloatArray, drafted: IntArray, knowledge: Knowledge) -> IntArray:
        """[N] verify lengths of the bound rows, 0 elsewhere.

        survival: [N, K] non-increasing; its column k may know x_<k only, else (SELF) it isn't looked at.
        drafted: [N] tokens that came out.
        """
        if knowledge > Knowledge.PREFIX:
            return np.where(self.rows, np.minimum(self.lens, drafted), 0)
        position = np.arange(survival.shape[1])
        mine = np.where(self.rows[:, None] & (position < drafted[:, None]), survival, -np.inf)
        if self.rows.sum() < MANY:
            lens: IntArray = (mine >= self.price).sum(axis=1)
            return lens
        order = np.argsort(-mine, axis=None, kind="stable")[: self.total]
        kept = order[np.isfinite(mine.ravel()[order])]
        return np.bincount(kept // survival.shape[1], minlength=len(survival))


def bound_rows(
    drafters: Sequence[str | None],
    admits: Knowledge,
    point_masses: Collection[str],
    proposals: Sequence[Collection[str]] | None = None,
) -> npt.NDArray[np.bool_]:
    """[N] whose draft may be sampled, under a verifier that minds. Point masses are functions of the context.

    proposals: [N] the drafters whose drafts of this step were known before the plan, hence are such functions.
    """
    if admits >= Knowledge.SELF:
        return np.zeros(len(drafters), dtype=bool)
    known = proposals or [()] * len(drafters)
    return np.array(
        [
            name is not None and name not in point_masses and name not in told
            for name, told in zip(drafters, known, strict=True)
        ],
        dtype=bool,
    )


def yardstick(rows: npt.NDArray[np.bool_], planned: Allocation, ms: FloatArray, per_ms: float) -> Yardstick:
    """From the allocation that the record of the past suggests.

    ms: [M + 1] step time over verified draft tokens. per_ms: what a millisecond is worth. The price of a token is what
    it costs around the planned total, averaged over as many tokens as there are requests: stairs are no price.
    """
    total, most = int(planned.verify_lens.sum()), len(ms) - 1
    low, high = max(total - len(rows), 0), min(total + len(rows), most)
    token_ms = float(ms[high] - ms[low]) / (high - low) if high > low else 0.0
    lens = np.where(rows, planned.verify_lens, 0)
    return Yardstick(rows, lens, per_ms * token_ms, int(lens.sum()))
