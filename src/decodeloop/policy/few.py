"""What `fair` finds, for a few tokens, in plain numbers.

Most steps have no more than a few dozen drafted tokens. Between two steps of a model, whose weights leave nothing in
the caches, arrays take several times as long to make and to call upon as so many numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np

from decodeloop.policy.allocate import Allocation, Objective
from decodeloop.policy.fair import ROUNDING, Bound
from decodeloop.types import FloatArray

Survival = Sequence[float]  # of one draft: P(its first k + 1 tokens are all accepted), non-increasing


def allocate_few(
    drafts: Sequence[Survival],
    ms: Sequence[float],
    objective: Objective,
    bound: Bound,
    credit: Sequence[float],
) -> Allocation:
    """The best lengths that keep the bound, exactly; all requests are worth and cost the same.

    drafts: [N], empty where nothing is drafted. ms: [M + 1] time of the whole step when 0..M of their tokens are
    verified; M is at least the number drafted. credit: [N] tokens.
    """
    ranked = sorted(chain.from_iterable(drafts), reverse=True)
    values = list(accumulate(ranked, initial=float(len(drafts))))
    scores = objective.scores(values, ms)
    best = scores.index(max(scores))
    harmless_ms = max(bound.longest_ms(1.0 + min(credit)), ms[0])
    if ms[best] <= harmless_ms:
        return Allocation(np.array(_best(drafts, ranked, best)), values[best], ms[best], scores[best], scores[best])
    hopeless_ms = bound.longest_ms(1.0 + min(had + sum(own) for own, had in zip(drafts, credit, strict=True)))
    possible_ms = max(hopeless_ms, ms[0])
    possible = [total for total in range(len(scores)) if ms[total] <= possible_ms]
    found: Allocation | None = None
    for total in sorted(possible, key=scores.__getitem__, reverse=True):
        if found is not None and scores[total] <= found.score:  # no filling earns more than the best tokens
            break
        harmless = ms[total] <= harmless_ms
        lens = _best(drafts, ranked, total) if harmless else _filled(drafts, credit, bound.due(ms[total]), total)
        if lens is not None:
            value = len(drafts) + sum(sum(own[:length]) for own, length in zip(drafts, lens, strict=True))
            score = objective.score(value, ms[total])
            if found is None or score > found.score:
                found = Allocation(np.array(lens), value, ms[total], score, score)
    assert found is not None, "verifying nothing harms nobody"
    return found


def _filled(drafts: Sequence[Survival], credit: Sequence[float], due: float, total: int) -> list[int] | None:
    """[N] the best `total` tokens among which are those that everybody needs to have `due`; None: they can't be."""
    needed = [_needed(own, due - had) for own, had in zip(drafts, credit, strict=True)]
    rest = [own[length:] for own, length in zip(drafts, needed, strict=True)]
    ranked = sorted(chain.from_iterable(rest), reverse=True)
    left = total - sum(needed)
    if left < 0 or any(length > len(own) for own, length in zip(drafts, needed, strict=True)):
        return None
    return [length + more for length, more in zip(needed, _best(rest, ranked, left), strict=True)]


def _needed(survival: Survival, due: float) -> int:
    """How much of a draft must be verified for so many tokens; more than there is: all of it is not enough."""
    tokens, length = 1.0, 0
    for length, p in enumerate((0.0, *survival)):
        tokens += p
        if tokens >= due - (ROUNDING if length else 0.0):
            return length
    return length + 1


def _best(drafts: Sequence[Survival], ranked: Survival, total: int) -> list[int]:
    """[N] how many of the `total` best tokens each draft holds; ties go to the first rows. ranked: all, best first."""
    if not total:
        return [0] * len(drafts)
    last = ranked[total - 1]
    lens = [_longer_than(own, last) for own in drafts]
    left = total - sum(lens)
    for row, own in enumerate(drafts):
        if not left:
            break
        taken = min(left, own.count(last))
        lens[row] += taken
        left -= taken
    return lens


def _longer_than(survival: Survival, last: float) -> int:
    """How many tokens of a draft are likelier than that."""
    for length, p in enumerate(survival):
        if p <= last:
            return length
    return len(survival)


def padded(drafts: Sequence[Survival], length: int) -> FloatArray:
    """[N, length] survival, 0 beyond each draft."""
    survival = np.zeros((len(drafts), length))
    for row, own in zip(survival, drafts, strict=True):
        row[: len(own)] = own
    return survival
