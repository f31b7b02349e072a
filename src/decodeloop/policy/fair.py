"""The best allocation that nobody pays for: a bound on how much a request may be slowed for the others' sake.

Step time is shared, so in a mixed batch the most tokens in total can mean fewer for some: one copying request beside
seven that draft nothing gains 19 % in total and slows each of the seven to 0.86 of plain. Here every request keeps

    (1 + its expected accepted tokens + its credit) / T(B)  >=  (1 - budget) / T(plain),

its credit being what it has had beyond that so far: a draft that came out empty for once does not stop everyone else.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from decodeloop.policy.allocate import RATE, Allocation, Amount, Items, Objective, Scan, scan
from decodeloop.types import FloatArray, IntArray

MAX_TRIALS = 24  # totals that are filled around everybody's needs, best first
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Bound:
    """plain_ms: the step with nothing drafted. budget: the share of plain speed that may be lost; 1: no bound."""

    plain_ms: float
    budget: float

    def longest_ms(self, tokens: float) -> float:
        """The longest step in which `tokens`, credit included, are enough for a request."""
        return self.plain_ms * tokens / (1.0 - self.budget) if self.budget < 1.0 else math.inf

    def due(self, ms: Amount) -> Amount:
        """The tokens, credit included, that a request must have in a step of `ms`."""
        return (1.0 - self.budget) * ms / self.plain_ms


def allocate_fairly(
    items: Items, ms: FloatArray, plain_ms: float, budget: float, objective: Objective = RATE
) -> Allocation:
    """The best lengths that keep the bound.

    plain_ms: the step with nothing drafted; drafting that is already paid for in ms[0] is not held against the
    requests. Exact for items of equal cost, up to MAX_TRIALS totals that have to be filled one by one; `gap` says what
    may be missing.
    """
    free = scan(items, ms, objective)
    slack = _Slack(items, Bound(max(plain_ms, float(ms[0])), budget))
    harmless_ms = max(slack.harmless_ms, float(ms[0]))
    best = int(np.argmax(free.score))
    if free.ms[best] <= harmless_ms:
        return free.pick(best)
    found = free.pick(int(np.argmax(np.where(free.ms <= harmless_ms, free.score, -np.inf))))
    promising = np.flatnonzero((free.score > found.score) & (free.ms <= slack.hopeless_ms))
    promising = promising[np.argsort(-free.score[promising], kind="stable")]
    found = _fill(free, ms, slack, promising[:MAX_TRIALS], found)
    unproved = free.score[promising[MAX_TRIALS:]] if items.extra_ms is None else free.score
    return replace(found, bound=float(unproved.max(initial=found.score)))


@dataclass(frozen=True, slots=True)
class _Slack:
    """How far each request may be slowed."""

    items: Items
    bound: Bound

    @property
    def least(self) -> FloatArray:
        """[N] what counts for a request that has nothing more verified."""
        least = self.items.least_tokens
        return least if self.items.credit is None else least + self.items.credit

    @property
    def harmless_ms(self) -> float:
        """Up to here nobody's bound is touched, drafts or not."""
        return self.bound.longest_ms(float(self.least.min()))

    @property
    def hopeless_ms(self) -> float:
        """Beyond here somebody's is broken, even with the whole draft verified."""
        return self.bound.longest_ms(float((self.least + self.items.survival.sum(axis=1)).min()))

    def needed(self, ms: FloatArray) -> IntArray:
        """[N, T] the shortest verified drafts that keep the bound in steps of `ms` [T]; K + 1: none does."""
        least = self.least[:, None]
        tokens = least + np.cumsum(self.items.survival, axis=1)
        due = self.bound.due(ms)
        short = np.count_nonzero(tokens[:, :, None] < due - ROUNDING, axis=1)
        needed: IntArray = short + (due > least)
        return needed

    def holds(self, lens: IntArray, ms: float) -> bool:
        credit = 0.0 if self.items.credit is None else self.items.credit
        return bool(np.all(self.items.tokens(lens) + credit >= self.bound.due(ms) - ROUNDING))


def _fill(free: Scan, ms: FloatArray, slack: _Slack, totals: IntArray, found: Allocation) -> Allocation:
    """`found`, or what beats it among the best fillings of `totals` that hold everybody's needed prefix."""
    items, (rows, length) = free.items, free.keys.shape
    needed = slack.needed(free.ms[totals])
    possible = (needed <= length).all(axis=0) & (needed.sum(axis=0) <= totals)
    totals, needed = totals[possible], needed[:, possible]
    if not len(totals):
        return found
    order = np.argsort(-free.keys, axis=None, kind="stable")[: len(free.ranked)]
    row, position = np.divmod(order, length)
    forced = position < needed.T[:, row]  # [T, M], best first
    spare = (totals - needed.sum(axis=0))[:, None]
    chosen = forced | (np.cumsum(~forced, axis=1) <= spare)
    value = items.plain_value + chosen @ items.values.ravel()[order]
    spent = ms[totals] + (0.0 if items.extra_ms is None else chosen @ items.extra_ms[row])
    scores = free.objective.score(value, spent)
    for best in np.argsort(-scores, kind="stable"):
        if scores[best] <= found.score:
            break
        lens = np.bincount(row[chosen[best]], minlength=rows)
        if slack.holds(lens, float(spent[best])):
            tokens, score = float(items.tokens(lens).sum()), float(scores[best])
            return Allocation(lens, tokens, float(spent[best]), score, score)
    return found
