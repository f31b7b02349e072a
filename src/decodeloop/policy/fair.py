"""The best allocation that nobody pays for: a bound on how much a request may be slowed for the others' sake.

Step time is shared, so in a mixed batch the most tokens in total can mean fewer for some: one copying request beside
seven that draft nothing gains 19 % in total and slows each of the seven to 0.86 of plain. Here every request keeps

    (1 + its expected accepted tokens + its credit) / T(B)  >=  (1 - budget) / T(plain),

its credit being what it has had beyond that so far: a draft that came out empty for once does not stop everyone else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from decodeloop.policy.allocate import RATE, Allocation, Items, Objective, Scan, scan
from decodeloop.types import FloatArray, IntArray

MAX_TRIALS = 24  # totals that are filled around everybody's needs, best first
ROUNDING = 1e-12


def allocate_fairly(
    items: Items, ms: FloatArray, plain_ms: float, budget: float | FloatArray, objective: Objective = RATE
) -> Allocation:
    """The best lengths that keep the bound.

    budget: a share of plain speed, or [N] of them. plain_ms: the step with nothing drafted; drafting that is already
    paid for in ms[0] is not held against the requests. Exact for items of equal cost, up to MAX_TRIALS totals that have
    to be filled one by one; `gap` says what may be missing.
    """
    free = scan(items, ms, objective)
    slack = _Slack(items, max(plain_ms, float(ms[0])), 1.0 - np.asarray(budget))
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

    def needed(self, ms: FloatArray) -> IntArray:
        """[N, T] the shortest verified drafts that keep the bound in steps of `ms` [T]; K + 1: none does."""
        least = self.least
        tokens = least[:, None] + np.cumsum(self.items.survival, axis=1)
        need = np.multiply.outer(np.broadcast_to(self.keep, len(least)), ms / self.plain_ms)
        short = np.count_nonzero(tokens[:, :, None] < need[:, None, :] - ROUNDING, axis=1)
        needed: IntArray = short + (need > least[:, None])
        return needed

    def holds(self, lens: IntArray, ms: float) -> bool:
        credit = 0.0 if self.items.credit is None else self.items.credit
        return bool(np.all(self.items.tokens(lens) + credit >= self.keep * (ms / self.plain_ms) - ROUNDING))


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
