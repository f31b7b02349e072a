"""Which drafted tokens a step should verify: the exact optimum over all length vectors, for any measured step time.

Survival is non-increasing along a draft, so for every total B the B largest survivals form prefixes of the drafts, and
F(B) = N + their sum is the most that B verified tokens can earn. Scanning F(B) / T(B) over *all* B is then exact
whatever T looks like; stopping at the first decline is not (step times are staircases).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decodeloop.types import FloatArray

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True)
class Items:
    """The drafted tokens that could be verified.

    survival: [N, K] P(the first k+1 tokens of the draft are all accepted), non-increasing along k; 0 beyond the draft.
    weights: [N] what a token of each request is worth.
    extra_ms: [N] what each verified token of a request costs beyond the step time of the total (long contexts).
    certain: [N] expected accepted tokens of drafts that are verified whatever is decided (forced ones).
    credit: [N] tokens that a request has had beyond its bound so far, and may lose now (`allocate_fairly` only).
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

    def score(self, value: FloatArray, ms: FloatArray) -> FloatArray: ...

    def price(self, score: float) -> float:
        """What a millisecond is worth, once `score` is known to be attainable."""
        ...


class Rate:
    """Value per millisecond."""

    def score(self, value: FloatArray, ms: FloatArray) -> FloatArray:
        return np.divide(value, ms)

    def price(self, score: float) -> float:
        return score


@dataclass(frozen=True, slots=True)
class Priced:
    """Value minus time at a price known beforehand."""

    per_ms: float

    def score(self, value: FloatArray, ms: FloatArray) -> FloatArray:
        net: FloatArray = value - self.per_ms * ms
        return net

    def price(self, score: float) -> float:
        return self.per_ms


RATE = Rate()


@dataclass(frozen=True, slots=True)
class Allocation:
    """verify_lens: [N]. tokens: expected emitted, plain ones included. ms: of the step. bound: on the best score."""

    verify_lens: IntArray
    tokens: float
    ms: float
    score: float
    bound: float

    @property
    def gap(self) -> float:
        """How much may be missing to the optimum, as a share of it."""
        missing = self.bound - self.score
        return missing / abs(self.bound) if missing > 1e-12 * abs(self.bound) else 0.0


@dataclass(frozen=True, slots=True)
class _Scan:
    """Every total B at once: value, time and score of verifying the B best tokens, [M + 1] each."""

    keys: FloatArray  # [N, K] what the items are ranked by
    ranked: FloatArray  # [M] the keys, best first
    value: FloatArray
    ms: FloatArray
    score: FloatArray

    def lens(self, total: int) -> IntArray:
        return _top(self.keys, total, float(self.ranked[total - 1])) if total else np.zeros(len(self.keys), np.int64)


def allocate(items: Items, ms: FloatArray, objective: Objective = RATE) -> Allocation:
    """The lengths of the best score.

    ms: [M + 1] time of the whole step when B = 0..M draft tokens are verified; M is at least the number drafted.
    Exact: by Dinkelbach's iteration when items differ in cost, in one scan when they don't.
    """
    scan = _scan(items, ms, objective)
    return _chosen(items, scan, int(np.argmax(scan.score)))


def allocate_fairly(
    items: Items, ms: FloatArray, plain_ms: float, budget: float | FloatArray, objective: Objective = RATE
) -> Allocation:
    """The best lengths that slow no request by more than `budget` (a share, or [N] of them) against plain decoding.

    Every request keeps (1 + its expected accepted tokens + its credit) / T(B) >= (1 - budget) / plain_ms. Drafting
    that is already paid for in ms[0] is not held against the requests. Exact for items of equal cost, up to MAX_TRIALS
    totals that have to be filled one by one; `gap` says what may be missing.
    """
    scan = _scan(items, ms, objective)
    slack = _Slack(items, max(plain_ms, float(ms[0])), 1.0 - np.asarray(budget))
    best = int(np.argmax(scan.score))
    harmless_ms = max(slack.harmless_ms, float(ms[0]))
    if scan.ms[best] <= harmless_ms:
        return _chosen(items, scan, best)
    found = _chosen(items, scan, int(np.argmax(np.where(scan.ms <= harmless_ms, scan.score, -np.inf))))

    promising = np.flatnonzero((scan.score > found.score) & (scan.ms <= slack.hopeless_ms))
    promising = promising[np.argsort(-scan.score[promising], kind="stable")]
    for total in promising[:MAX_TRIALS]:
        if scan.score[total] <= found.score:
            break
        lens = _filled(scan.keys, slack, int(total), float(scan.ms[total]))
        if lens is not None:
            tried = _valued(items, lens, float(ms[total]) + _extra(items, lens), objective)
            if tried.score > found.score and slack.holds(lens, tried.ms):
                found = tried
    proved = scan.score[promising[MAX_TRIALS:]] if items.extra_ms is None else scan.score
    return replace(found, bound=float(proved.max(initial=found.score)))


MAX_TRIALS = 48


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


def _scan(items: Items, ms: FloatArray, objective: Objective) -> _Scan:
    values, plain, count = items.values, items.plain_value, min(items.survival.size, len(ms) - 1)
    if items.extra_ms is None:
        ranked = np.sort(values, axis=None)[::-1][:count]
        value, spent = _earned(plain, ranked), ms[: count + 1]
        return _Scan(values, ranked, value, spent, objective.score(value, spent))
    price = objective.price(_score(objective, plain, float(ms[0])))
    extra = np.broadcast_to(items.extra_ms[:, None], values.shape)
    while True:
        keys = values - price * extra
        order = np.argsort(-keys, axis=None, kind="stable")[:count]
        spent = ms[: count + 1].copy()
        spent[1:] += np.cumsum(extra.ravel()[order])
        value = _earned(plain, values.ravel()[order])
        scan = _Scan(keys, keys.ravel()[order], value, spent, objective.score(value, spent))
        dearer = objective.price(float(scan.score.max()))
        if dearer <= price * (1.0 + 1e-12):
            return scan
        price = dearer


def _earned(plain: float, gains: FloatArray) -> FloatArray:
    """[M + 1] F(B) for B = 0..M."""
    value = np.empty(len(gains) + 1)
    value[0] = plain
    np.cumsum(gains, out=value[1:])
    value[1:] += plain
    return value


def _score(objective: Objective, value: float, ms: float) -> float:
    return float(objective.score(np.array([value]), np.array([ms]))[0])


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


@dataclass(frozen=True, slots=True)
class _Slack:
    """How far each request may be slowed. keep: what must remain of its plain speed, a share or [N]."""

    items: Items
    plain_ms: float
    keep: FloatArray

    @property
    def least(self) -> FloatArray:
        """[N] what counts for a request that has nothing more verified."""
        least = self.items.least_tokens
        return least if self.items.credit is None else least + self.items.credit

    @property
    def harmless_ms(self) -> float:
        """Up to here nobody's bound is touched, drafts or not."""
        return self.plain_ms * float(np.min(self.least / self.keep))

    @property
    def hopeless_ms(self) -> float:
        """Beyond here somebody's is broken, even with the whole draft verified."""
        return self.plain_ms * float(np.min((self.least + self.items.survival.sum(axis=1)) / self.keep))

    def needed(self, ms: float) -> IntArray:
        """[N] the shortest verified drafts that keep the bound in a step of `ms`; K + 1: none does."""
        least = self.least
        tokens = least[:, None] + np.cumsum(self.items.survival, axis=1)
        need = np.broadcast_to(self.keep * (ms / self.plain_ms), len(tokens))
        needed: IntArray = (tokens < need[:, None] - 1e-12).sum(axis=1) + (need > least)
        return needed

    def holds(self, lens: IntArray, ms: float) -> bool:
        credit = 0.0 if self.items.credit is None else self.items.credit
        return bool(np.all(self.items.tokens(lens) + credit >= self.keep * (ms / self.plain_ms) - 1e-12))


def _filled(keys: FloatArray, slack: _Slack, total: int, ms: float) -> IntArray | None:
    """The best `total` tokens in a step of `ms` that contain everybody's needed prefix."""
    needed = slack.needed(ms)
    if needed.max() > keys.shape[1] or needed.sum() > total or not total:
        return None
    ranked = np.where(np.arange(keys.shape[1]) < needed[:, None], np.inf, keys)
    return _top(ranked, total, float(np.partition(ranked, ranked.size - total, axis=None)[ranked.size - total]))


def _extra(items: Items, lens: IntArray) -> float:
    return 0.0 if items.extra_ms is None else float(lens @ items.extra_ms)


def _chosen(items: Items, scan: _Scan, total: int) -> Allocation:
    lens, value, score = scan.lens(total), float(scan.value[total]), float(scan.score[total])
    tokens = value if items.weights is None else float(items.tokens(lens).sum())
    return Allocation(lens, tokens, float(scan.ms[total]), score, score)


def _valued(items: Items, lens: IntArray, ms: float, objective: Objective) -> Allocation:
    expected = items.tokens(lens)
    tokens = float(expected.sum())
    score = _score(objective, tokens if items.weights is None else float(expected @ items.weights), ms)
    return Allocation(lens, tokens, ms, score, score)
