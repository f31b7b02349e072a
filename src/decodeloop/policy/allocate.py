"""Which drafted tokens a step should verify: the exact optimum over all length vectors, for any measured step time.

Survival is non-increasing along a draft, so for every total B the B largest survivals form prefixes of the drafts, and
F(B) = N + their sum is the most that B verified tokens can earn. Scanning F(B) / T(B) over *all* B is then exact
whatever T looks like; stopping at the first decline is not (step times are staircases).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import truediv
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from decodeloop.types import FloatArray, IntArray

Amount = TypeVar("Amount", float, FloatArray)


@dataclass(frozen=True, slots=True)
class Items:
    """The drafted tokens that could be verified.

    survival: [N, K] P(the first k+1 tokens of the draft are all accepted), non-increasing along k; 0 beyond the draft.
    weights: [N] what a token of each request is worth.
    extra_ms: [N] what each verified token of a request costs beyond the step time of the total (long contexts).
    certain: [N] expected accepted tokens of drafts that are verified whatever is decided (forced ones).
    credit: [N] tokens that a request has had beyond its bound so far, and may lose now (see `fair`).
    """

    survival: FloatArray
    weights: FloatArray | None = None
    extra_ms: FloatArray | None = None
    certain: FloatArray | None = None
    credit: FloatArray | None = None

    @property
    def values(self) -> FloatArray:
        return self.survival if self.weights is None else self.survival * self.weights[:, None]

    @property
    def plain_value(self) -> float:
        """What the step is worth with nothing more verified: a token a request, and what is certain."""
        if self.weights is None:
            return len(self.survival) + (0.0 if self.certain is None else float(self.certain.sum()))
        return float(self.weights.sum() if self.certain is None else self.weights @ (1.0 + self.certain))

    def tokens(self, lens: IntArray) -> FloatArray:
        """[N] expected emitted tokens of each request."""
        verified = np.arange(self.survival.shape[1]) < lens[:, None]
        tokens: FloatArray = self.least_tokens + np.where(verified, self.survival, 0.0).sum(axis=1)
        return tokens

    @property
    def least_tokens(self) -> FloatArray:
        """[N] expected emitted tokens of each request when nothing more is verified."""
        return np.ones(len(self.survival)) if self.certain is None else 1.0 + self.certain


class Objective(Protocol):
    """What makes one allocation better than another."""

    def score(self, value: Amount, ms: Amount) -> Amount: ...

    def scores(self, values: Sequence[float], ms: Sequence[float]) -> list[float]:
        """`score` of each, in plain numbers; `ms` may be longer."""
        ...

    def price(self, score: float) -> float:
        """What a millisecond is worth, once `score` is known to be attainable."""
        ...


class Rate:
    """Value per millisecond."""

    def score(self, value: Amount, ms: Amount) -> Amount:
        return value / ms

    def scores(self, values: Sequence[float], ms: Sequence[float]) -> list[float]:
        return list(map(truediv, values, ms))

    def price(self, score: float) -> float:
        return score


@dataclass(frozen=True, slots=True)
class Priced:
    """Value minus time at a price known beforehand."""

    per_ms: float

    def score(self, value: Amount, ms: Amount) -> Amount:
        return value - self.per_ms * ms

    def scores(self, values: Sequence[float], ms: Sequence[float]) -> list[float]:
        return [value - self.per_ms * each for value, each in zip(values, ms, strict=False)]

    def price(self, score: float) -> float:
        return self.per_ms


RATE = Rate()


@dataclass(frozen=True, slots=True)
class Allocation:
    """verify_lens: [N]. tokens: expected emitted, plain ones included. ms: of the step. bound: on the best score.

    gain_ms: what verifying saves, at the worth that the aim gives to tokens; None: they all count the same.
    """

    verify_lens: IntArray
    tokens: float
    ms: float
    score: float
    bound: float
    gain_ms: float | None = None

    @property
    def gap(self) -> float:
        """How much may be missing to the optimum, as a share of it."""
        missing = self.bound - self.score
        return missing / abs(self.bound) if missing > 1e-12 * abs(self.bound) else 0.0


@dataclass(frozen=True, slots=True)
class Scan:
    """Every total B at once: value, time and score of verifying the B best tokens, [M + 1] each."""

    items: Items
    objective: Objective
    keys: FloatArray  # [N, K] what the items are ranked by
    ranked: FloatArray  # [M] the keys, best first
    value: FloatArray
    ms: FloatArray
    score: FloatArray

    def pick(self, total: int) -> Allocation:
        lens = _top(self.keys, total, float(self.ranked[total - 1])) if total else np.zeros(len(self.keys), np.int64)
        value, score = float(self.value[total]), float(self.score[total])
        tokens = value if self.items.weights is None else float(self.items.tokens(lens).sum())
        return Allocation(lens, tokens, float(self.ms[total]), score, score)


def allocate(items: Items, ms: FloatArray, objective: Objective = RATE) -> Allocation:
    """The lengths of the best score.

    ms: [M + 1] time of the whole step when B = 0..M draft tokens are verified; M is at least the number drafted.
    Exact: by Dinkelbach's iteration when items differ in cost, in one scan when they don't.
    """
    found = scan(items, ms, objective)
    return found.pick(int(np.argmax(found.score)))


def best_score(items: Items, ms: FloatArray, objective: Objective = RATE) -> float:
    """Of that allocation, for those who need not know which it is."""
    return float(scan(items, ms, objective).score.max())


def depth_scores(
    items: Items, paid: npt.NDArray[np.bool_], ms: FloatArray, draft_ms: FloatArray, objective: Objective = RATE
) -> FloatArray:
    """[D + 1] the best score that each depth d = 0..D of the paid drafter allows: F_d(B) against T_draft(d) + T(B).

    paid: [N] requests whose drafts cost `draft_ms[d]` together when they are d tokens deep; the others' are free.
    ms: [M + 1] step time without drafting. Extra costs of items are left to `allocate`.
    """
    values = items.values
    order = np.argsort(-values, axis=None, kind="stable")[: len(ms) - 1]
    row, position = np.divmod(order, values.shape[1])
    drafted = ~paid[row] | (position < np.arange(len(draft_ms))[:, None])
    depths = len(draft_ms)
    value = np.full((depths, len(order) + 1), items.plain_value)
    value[:, 1:] += np.cumsum(np.where(drafted, values.ravel()[order], 0.0), axis=1)
    total = np.zeros((depths, len(order) + 1), dtype=np.int64)
    np.cumsum(drafted, axis=1, out=total[:, 1:])
    best: FloatArray = objective.score(value, ms[total] + draft_ms[:, None]).max(axis=1)
    return best


def scan(items: Items, ms: FloatArray, objective: Objective) -> Scan:
    """All totals, ranked so that the best of them is the best of all allocations. Arguments as in `allocate`."""
    values, plain, count = items.values, items.plain_value, min(items.survival.size, len(ms) - 1)
    if items.extra_ms is None:
        ranked = np.sort(values, axis=None)[::-1][:count]
        value, spent = _earned(plain, ranked), ms[: count + 1]
        return Scan(items, objective, values, ranked, value, spent, objective.score(value, spent))
    count = min(count, int(np.count_nonzero(values > 0.0)))
    price = objective.price(float(objective.score(np.array([plain]), ms[:1])[0]))
    extra = np.broadcast_to(items.extra_ms[:, None], values.shape)
    while True:
        keys = np.where(values > 0.0, values - price * extra, -np.inf)  # what wasn't drafted is never cheap
        order = np.argsort(-keys, axis=None, kind="stable")[:count]
        value, spent = _earned(plain, values.ravel()[order]), ms[: count + 1].copy()
        spent[1:] += np.cumsum(extra.ravel()[order])
        found = Scan(items, objective, keys, keys.ravel()[order], value, spent, objective.score(value, spent))
        dearer = objective.price(float(found.score.max()))
        if dearer <= price * (1.0 + 1e-12):
            return found
        price = dearer


def drafts_of(survival: FloatArray) -> int:
    """How many of [N, K] have anything drafted."""
    return int(np.count_nonzero(survival[:, :1]))


def _earned(plain: float, gains: FloatArray) -> FloatArray:
    """[M + 1] F(B) for B = 0..M."""
    value = np.empty(len(gains) + 1)
    value[0] = plain
    np.cumsum(gains, out=value[1:])
    value[1:] += plain
    return value


def _top(keys: FloatArray, total: int, last: float) -> IntArray:
    """[N] how many of the `total` largest keys, of which `last` is the least, each row holds.

    Ties go to the first rows: an order that knows nothing of the draft.
    """
    lens: IntArray = (keys >= last).sum(axis=1)
    surplus = int(lens.sum()) - total
    if surplus:
        ties = (keys == last).sum(axis=1)
        lens -= np.clip(surplus - (np.cumsum(ties[::-1]) - ties[::-1])[::-1], 0, ties)
    return lens
