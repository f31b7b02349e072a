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

from decodeloop.policy.allocate import IntArray
from decodeloop.policy.slots import Slots
from decodeloop.types import AcceptanceEstimate, FloatArray, RequestClass

PRIOR = 0.6  # conditional acceptance of a drafter that nobody knows; the one thing tenants share
PRIOR_WEIGHT = 2.0  # labels it is worth
POOL_WEIGHT = 4.0
POSITION_WEIGHT = 8.0
LEAST, MOST = 0.01, 0.995
CLASS_HALF_LIFE = 512.0  # drafts
TENANT_HALF_LIFE = 4096.0
CAPACITY = 1024  # of (tenant, class, drafter), and of (tenant, drafter)


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
    """Discounted counts in a hierarchy within each tenant: a position leans on its class, a class on its tenant."""

    def __init__(self, max_draft_len: int) -> None:
        self.max_draft_len = max_draft_len
        shape = (CAPACITY, max_draft_len)
        self._hits, self._tries = np.zeros(shape), np.zeros(shape)
        self._tenant_hits, self._tenant_tries = np.zeros(shape), np.zeros(shape)
        self._conditional = np.full(shape, PRIOR)
        self._tenant_of = np.zeros(CAPACITY, dtype=np.int64)
        self._classes = Slots(CAPACITY, self._clear_class)
        self._tenants = Slots(CAPACITY, self._clear_tenant)

    def slot(self, tenant: str, request_class: RequestClass, drafter: str) -> int:
        """The row of a class's drafts. Valid until CAPACITY other classes were asked for."""
        tenant_row = self._tenants.row((tenant, drafter))
        row = self._classes.row((tenant, request_class, drafter))
        if self._tenant_of[row] != tenant_row:
            self._tenant_of[row] = tenant_row
            self._refresh(np.array([row]))
        return row

    def conditional(self, slots: IntArray) -> FloatArray:
        """[n, K] P(k accepted | reached) for each of `slots`."""
        rows: FloatArray = self._conditional[slots]
        return rows

    def learn(self, slots: IntArray, runs: Runs) -> None:
        """Count drafts, `slots[i]` being whose. Forgetting is per draft, so a large batch forgets no faster."""
        seen, hit = runs.labels(self.max_draft_len)
        tenants = self._tenant_of[slots]
        _count(self._hits, self._tries, slots, seen, hit, half_life=CLASS_HALF_LIFE)
        _count(self._tenant_hits, self._tenant_tries, tenants, seen, hit, half_life=TENANT_HALF_LIFE)
        self._refresh(np.unique(slots))

    def forget(self, slot: int, share: float) -> None:
        """Drop `share` of what a class taught: it has changed."""
        self._hits[slot] *= 1.0 - share
        self._tries[slot] *= 1.0 - share

    def estimate(self, tenant: str, request_class: RequestClass, drafter: str) -> AcceptanceEstimate:
        row = self.slot(tenant, request_class, drafter)
        return AcceptanceEstimate(np.cumprod(self._conditional[row]), self._tries[row].copy())

    def known(self) -> list[tuple[str, RequestClass, str]]:
        """(tenant, class, drafter) of which something was learned."""
        return [key for key, row in self._classes.items() if self._tries[row].any()]  # type: ignore[misc]

    def describe(self) -> list[dict[str, Any]]:
        described = []
        for tenant, request_class, drafter in self.known():
            estimate = self.estimate(tenant, request_class, drafter)
            described.append(
                {
                    "tenant": tenant,
                    "class": str(request_class),
                    "drafter": drafter,
                    "survival": [round(float(value), 4) for value in estimate.survival],
                    "observations": [round(float(value), 1) for value in estimate.observations],
                }
            )
        return described

    def _refresh(self, rows: IntArray) -> None:
        """Shape over positions from the tenant, level from the class as a whole, detail from the class's positions."""
        tenant_hits, tenant_tries = self._tenant_hits[self._tenant_of[rows]], self._tenant_tries[self._tenant_of[rows]]
        level = _shrunk(tenant_hits.sum(axis=1), tenant_tries.sum(axis=1), PRIOR, PRIOR_WEIGHT)[:, None]
        shape = _shrunk(tenant_hits, tenant_tries, level, POSITION_WEIGHT)
        hits, tries = self._hits[rows], self._tries[rows]
        expected = (tries * shape).sum(axis=1)
        ratio = (hits.sum(axis=1) + POOL_WEIGHT) / (expected + POOL_WEIGHT)
        pooled = np.clip(shape * ratio[:, None], LEAST, MOST)
        self._conditional[rows] = np.clip(_shrunk(hits, tries, pooled, POSITION_WEIGHT), LEAST, MOST)

    def _clear_class(self, row: int) -> None:
        self._hits[row] = self._tries[row] = 0.0
        self._tenant_of[row] = -1

    def _clear_tenant(self, row: int) -> None:
        self._tenant_hits[row] = self._tenant_tries[row] = 0.0
        self._tenant_of[self._tenant_of == row] = -1


def _count(
    hits: FloatArray,
    tries: FloatArray,
    slots: IntArray,
    seen: npt.NDArray[np.bool_],
    hit: npt.NDArray[np.bool_],
    *,
    half_life: float,
) -> None:
    drafts = np.bincount(slots, minlength=len(hits))
    touched = np.flatnonzero(drafts)
    kept = 0.5 ** (drafts[touched] / half_life)[:, None]
    hits[touched] *= kept
    tries[touched] *= kept
    np.add.at(hits, slots, hit)
    np.add.at(tries, slots, seen)


def _shrunk(hits: FloatArray, tries: FloatArray, prior: FloatArray | float, weight: float) -> FloatArray:
    mean: FloatArray = (hits + weight * prior) / (tries + weight)
    return mean
