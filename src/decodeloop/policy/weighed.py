"""What `allocate` finds, for a few tokens of unequal worth, in plain numbers: see `few`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from decodeloop.policy.allocate import RATE, Allocation, Objective
from decodeloop.policy.few import Survival

Ranked = list[tuple[float, int]]  # what each token is worth, negated, and its draft, best first


def best_rate(drafts: Sequence[Survival], weights: Sequence[float], ms: Sequence[float]) -> float:
    """The most value a millisecond. Arguments as in `allocate_weighed`."""
    return max(RATE.scores(_values(_ranked(drafts, weights), weights), ms))


def allocate_weighed(
    drafts: Sequence[Survival], weights: Sequence[float], ms: Sequence[float], objective: Objective
) -> Allocation:
    """The best lengths, exactly, where nobody is bound to lose little.

    drafts, weights: [N]. ms: [M + 1] time of the whole step when 0..M of their tokens are verified; M is at least the
    number drafted. All tokens cost the same.
    """
    ranked = _ranked(drafts, weights)
    scores = objective.scores(_values(ranked, weights), ms)
    total = scores.index(max(scores))
    lens = [0] * len(drafts)
    for _, row in ranked[:total]:
        lens[row] += 1
    tokens = len(drafts) + sum(sum(own[:length]) for own, length in zip(drafts, lens, strict=True))
    return Allocation(np.array(lens), tokens, ms[total], scores[total], scores[total])


def _ranked(drafts: Sequence[Survival], weights: Sequence[float]) -> Ranked:
    """Ties go to the first rows: an order that knows nothing of the draft."""
    return sorted(
        (-weight * p, row) for row, (own, weight) in enumerate(zip(drafts, weights, strict=True)) for p in own
    )


def _values(ranked: Ranked, weights: Sequence[float]) -> list[float]:
    """[M + 1] what the step is worth with the M best tokens."""
    return list(accumulate((-worth for worth, _ in ranked), initial=sum(weights)))
