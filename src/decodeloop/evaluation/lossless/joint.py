"""Two requests in one step, whose drafts may decide about each other: the law of both texts together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import numpy as np

from decodeloop.evaluation.lossless.enumeration import Branch, Law, Table, Tokens, branches, continued, target_law
from decodeloop.evaluation.lossless.enumeration import total_variation as distance_of
from decodeloop.evaluation.lossless.tables import TableRows, sampled_draft
from decodeloop.speculation import Draft, Verifier
from decodeloop.speculation.sampling import Chance, Distribution
from decodeloop.types import FloatArray

LENGTH = 2  # tokens of each draft

Drafts = Sequence[Draft]
Submit = Callable[[Drafts], Drafts]  # the two drafts as drawn -> what is verified of each


class Elsewhere:
    """A second request's randomness: the same Branch, at positions of its own."""

    def __init__(self, chance: Branch) -> None:
        self._chance = chance

    def coupled(self, p: Distribution, position: int) -> int:
        return self._chance.coupled(p, 1000 + position)

    def accept(self, probability: float, position: int, start: int) -> bool:
        return self._chance.accept(probability, 1000 + position, 1000 + start)

    def draw(self, probs: FloatArray, position: int, start: int) -> int:
        return self._chance.draw(probs, 1000 + position, 1000 + start)

    def draft(self, q: Distribution, position: int, start: int) -> int:
        return self._chance.draft(q, 1000 + position, 1000 + start)


def joint_distance(verifier: Verifier, targets: Sequence[Table], qs: Sequence[Table], submit: Submit) -> float:
    """Total variation of both texts together from two plain texts."""

    def said(chance: Branch) -> tuple[Tokens, Tokens]:
        chances: tuple[Chance, Chance] = (chance, Elsewhere(chance))
        drafts = [sampled_draft(c, q, LENGTH) for c, q in zip(chances, qs, strict=True)]
        one, other = (
            verifier.judge(draft, TableRows(target, draft.tokens), c).emitted
            for draft, target, c in zip(submit(drafts), targets, chances, strict=True)
        )
        return one, other

    joint: Law = {}
    for (one, other), probability in branches(said):
        for a, rest_a in continued(one, targets[0], LENGTH):
            for b, rest_b in continued(other, targets[1], LENGTH):
                joint[a + b] = joint.get(a + b, 0.0) + probability * rest_a * rest_b
    laws = [target_law(target, LENGTH) for target in targets]
    return distance_of(joint, {a + b: laws[0][a] * laws[1][b] for a, b in product(*laws)})


# Ways to spend a budget of LENGTH verified tokens over both requests.


def by(allocate: Callable[[Drafts], Sequence[int]]) -> Submit:
    """allocate: both drafts -> both verify lengths."""
    return lambda drafts: [draft.cut(length) for draft, length in zip(drafts, allocate(drafts), strict=True)]


def top(scores: Sequence[FloatArray]) -> list[int]:
    """How many of each request's scores are among the largest; ties go by position, then by request."""
    ranked = sorted((-score, k, r) for r, row in enumerate(scores) for k, score in enumerate(row))[:LENGTH]
    return [sum(r == request for _, _, r in ranked) for request in range(len(scores))]


def top_by_own_q(drafts: Drafts) -> list[int]:
    """Unsound: ranks by what was drawn."""
    return top([np.cumprod([row[t] for row, t in zip(d.q or (), d.tokens, strict=True)]) for d in drafts])


def top_by_survival(drafts: Drafts) -> list[int]:
    """Sound: survival from what comes before each token, and a budget fixed beforehand."""
    return top([np.cumprod([row.max() for row in d.q or ()]) for d in drafts])


def top_not_monotone(drafts: Drafts) -> list[int]:
    """Unsound: a score is known before its token, but a later one may outrank an earlier one."""
    scores = [[0.5, 0.9 if d.tokens[0] == 0 else 0.1] for d in drafts]
    ranked = sorted((-s, r, k) for r, row in enumerate(scores) for k, s in enumerate(row))[:LENGTH]
    return [max((k + 1 for _, r, k in ranked if r == request), default=0) for request in range(2)]
