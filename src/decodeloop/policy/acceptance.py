"""How far drafts survive, per tenant, class, drafter and position, before anything of the next draft is known.

Labels are censored: a draft shows its accepted positions and its first rejection, nothing beyond, and a fully accepted
one shows no rejection at all. So what is counted is the conditional acceptance, P(k accepted | all before it were), at
positions that were reached; survival is its running product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.policy.slots import Leaves, membership
from decodeloop.types import AcceptanceEstimate, FloatArray, IntArray, RequestClass

PRIOR = 0.6  # conditional acceptance of a drafter that nobody knows; the one thing tenants share
PRIOR_WEIGHT = 2.0  # labels it is worth
POOL_WEIGHT = 4.0
POSITION_WEIGHT = 8.0
LEAST, MOST = 0.01, 0.995
CLASS_HALF_LIFE = 512.0  # drafts
TENANT_HALF_LIFE = 4096.0


@dataclass(frozen=True, slots=True)
class Runs:
    """What became of drafts, one entry each.

    accepted: tokens that were right. censored: the draft ended there, or the text did: no rejection was seen.
    """

    accepted: IntArray
    censored: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, accepted: Sequence[int], censored: Sequence[bool]) -> Runs:
        return cls(np.array(accepted, dtype=np.int64), np.array(censored, dtype=bool))

    def labels(self, length: int) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
        """Which positions were reached and judged, and which of them were accepted: [R, length] each."""
        position = np.arange(length)
        hit = position < self.accepted[:, None]
        seen = hit | ((position == self.accepted[:, None]) & ~self.censored[:, None])
        return seen, hit


class AcceptanceModel:
    """Discounted counts in a hierarchy within each tenant: a position leans on its class, a class on its tenant.

    conditional: [capacity, K] P(k accepted | reached).
    total, variance: [capacity, K + 1] hits to be expected of the first k positions, once reached, and their variance.
    further: [capacity, K + 1] expected accepted tokens from position k on, once it is reached.
    Rows are those of `leaves`.
    """

    def __init__(self, max_draft_len: int, leaves: Leaves) -> None:
        self.max_draft_len = max_draft_len
        shape = (leaves.capacity, max_draft_len)
        self._hits, self._tries = np.zeros(shape), np.zeros(shape)
        self._tenant_hits, self._tenant_tries = np.zeros(shape), np.zeros(shape)
        self.conditional = np.full(shape, PRIOR)
        self.total = np.zeros((leaves.capacity, max_draft_len + 1))
        self.variance = np.zeros((leaves.capacity, max_draft_len + 1))
        self.further = np.zeros((leaves.capacity, max_draft_len + 1))
        self._leaves = leaves
        leaves.tell(self._clear_leaf, self._clear_tenant)

    def learn(self, slots: IntArray, runs: Runs) -> None:
        """Count drafts, `slots[i]` being whose. Forgetting is per draft, so a large batch forgets no faster."""
        seen, hit = runs.labels(self.max_draft_len)
        tenants = self._leaves.tenant_of[slots]
        _count(self._hits, self._tries, slots, seen, hit, half_life=CLASS_HALF_LIFE)
        _count(self._tenant_hits, self._tenant_tries, tenants, seen, hit, half_life=TENANT_HALF_LIFE)
        self._refresh(np.unique(slots))

    def forget(self, slot: int, share: float) -> None:
        """Drop `share` of what a class taught: it has changed."""
        self._hits[slot] *= 1.0 - share
        self._tries[slot] *= 1.0 - share

    def estimate(self, tenant: str, request_class: RequestClass, drafter: str) -> AcceptanceEstimate:
        row = self._leaves.row(tenant, request_class, drafter)
        return AcceptanceEstimate(np.cumprod(self.conditional[row]), self._tries[row].copy())

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "tenant": tenant,
                "class": str(request_class),
                "drafter": drafter,
                "survival": [round(float(value), 4) for value in np.cumprod(self.conditional[row])],
                "observations": [round(float(value), 1) for value in self._tries[row]],
            }
            for (tenant, request_class, drafter), row in self._leaves.items()
            if self._tries[row].any()
        ]

    def _refresh(self, rows: IntArray) -> None:
        """Shape over positions from the tenant, level from the class as a whole, detail from the class's positions."""
        tenants = self._leaves.tenant_of[rows]
        tenant_hits, tenant_tries = self._tenant_hits[tenants], self._tenant_tries[tenants]
        level = _shrunk(tenant_hits.sum(axis=1), tenant_tries.sum(axis=1), PRIOR, PRIOR_WEIGHT)[:, None]
        shape = _shrunk(tenant_hits, tenant_tries, level, POSITION_WEIGHT)
        hits, tries = self._hits[rows], self._tries[rows]
        expected = (tries * shape).sum(axis=1)
        ratio = (hits.sum(axis=1) + POOL_WEIGHT) / (expected + POOL_WEIGHT)
        pooled = np.clip(shape * ratio[:, None], LEAST, MOST)
        conditional = np.clip(_shrunk(hits, tries, pooled, POSITION_WEIGHT), LEAST, MOST)
        further = np.zeros((len(rows), self.max_draft_len + 1))
        for k in reversed(range(self.max_draft_len)):
            further[:, k] = conditional[:, k] * (1.0 + further[:, k + 1])
        self.conditional[rows], self.further[rows] = conditional, further
        self.total[rows, 1:] = np.cumsum(conditional, axis=1)
        self.variance[rows, 1:] = np.cumsum(conditional * (1.0 - conditional), axis=1)

    def _clear_leaf(self, row: int) -> None:
        self._hits[row] = self._tries[row] = 0.0
        self._refresh(np.array([row]))

    def _clear_tenant(self, row: int) -> None:
        self._tenant_hits[row] = self._tenant_tries[row] = 0.0


def _count(
    hits: FloatArray,
    tries: FloatArray,
    slots: IntArray,
    seen: npt.NDArray[np.bool_],
    hit: npt.NDArray[np.bool_],
    *,
    half_life: float,
) -> None:
    touched, member = membership(slots)
    kept = 0.5 ** (member.sum(axis=1) / half_life)[:, None]
    hits[touched] = hits[touched] * kept + member @ hit
    tries[touched] = tries[touched] * kept + member @ seen


def _shrunk(hits: FloatArray, tries: FloatArray, prior: FloatArray | float, weight: float) -> FloatArray:
    mean: FloatArray = (hits + weight * prior) / (tries + weight)
    return mean
