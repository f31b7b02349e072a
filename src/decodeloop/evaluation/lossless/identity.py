"""Are speculative answers the plain ones, token for token; and if plain ones differ among themselves, by how much more?

Three answers a question: plain, plain again in other company, speculative in that company. If speculation changes
nothing, "speculative differs from plain" and "again differs from plain" are exchangeable, so of the questions where
just one of them differs, each side gets half (McNemar's exact test).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from decodeloop.evaluation.lossless.tails import binomial_pmf, binomial_tail, share_above, share_below

Text = Sequence[Hashable]


@dataclass(frozen=True, slots=True)
class Identity:
    """differ: speculative answers that aren't the plain one; floor: plain answers that aren't.

    excess: the share by which `differ` exceeds `floor`; at most `excess_below` at 95 %. p_value: one-sided.
    first: where the first differing token comes, per differing speculative answer.
    """

    answers: int
    tokens: int
    differ: int
    floor: int
    excess: float
    excess_below: float
    p_value: float
    first: tuple[int, ...]


def compare(plain: Sequence[Text], again: Sequence[Text], speculative: Sequence[Text]) -> Identity:
    """All three in the order of the questions."""
    changed = [first_difference(a, s) for a, s in zip(plain, speculative, strict=True)]
    noisy = [first_difference(a, b) for a, b in zip(plain, again, strict=True)]
    only_speculative = sum(c is not None and n is None for c, n in zip(changed, noisy, strict=True))
    only_again = sum(n is not None and c is None for c, n in zip(changed, noisy, strict=True))
    answers = len(plain)
    return Identity(
        answers=answers,
        tokens=sum(len(text) for text in speculative),
        differ=sum(c is not None for c in changed),
        floor=sum(n is not None for n in noisy),
        excess=(only_speculative - only_again) / answers,
        excess_below=share_below(only_speculative, answers, 0.975) - share_above(only_again, answers, 0.975),
        p_value=binomial_tail(only_speculative, only_speculative + only_again, 0.5),
        first=tuple(c for c in changed if c is not None),
    )


def first_difference(one: Text, other: Text) -> int | None:
    """Where they part, an end included; None: nowhere."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def detectable_share(answers: int, power: float) -> float:
    """Where no answer may differ: the share of changed answers that is caught with probability `power`."""
    return float(1.0 - (1.0 - power) ** (1.0 / answers))


@lru_cache(maxsize=64)
def detectable_excess(answers: int, floor: float, *, alpha: float, power: float) -> float:
    """Where plain answers differ with probability `floor`: the excess that fails at `alpha` with that power; 1: none.

    Whether an answer is changed and whether it is noisy are taken as independent.
    """
    fails = _failing(answers, alpha)
    noise = floor
    low, high = 0.0, 1.0
    while high - low > 1e-3:
        excess = 0.5 * (low + high)
        changed = min(1.0, floor + excess)
        only_speculative = binomial_pmf(answers, changed * (1.0 - noise))
        only_again = binomial_pmf(answers, noise * (1.0 - changed))
        caught = float(sum(q * only_speculative[fails[c] :].sum() for c, q in enumerate(only_again) if q > 1e-12))
        low, high = (excess, high) if caught < power else (low, excess)
    return high


@lru_cache(maxsize=64)
def _failing(answers: int, alpha: float) -> tuple[int, ...]:
    """[c] the least number of questions only speculation changes that fails beside c only noise changes."""
    least, needed = 0, []
    for c in range(answers + 1):
        while least <= answers and binomial_tail(least, least + c, 0.5) > alpha:
            least += 1
        needed.append(least)
    return tuple(needed)


def corrupted(texts: Sequence[Text], share: float, *, seed: int) -> list[Text]:
    """A violation to be caught: a share of the answers (at least one) go on otherwise from some token on."""
    rng = np.random.default_rng(seed)
    count = min(len(texts), max(1, round(share * len(texts))))
    chosen = set(rng.permutation(len(texts))[:count].tolist())
    changed: list[Text] = []
    for i, text in enumerate(texts):
        cut = int(rng.integers(len(text))) if text else 0
        changed.append((*text[:cut], "another", *text[cut + 1 :]) if i in chosen else text)
    return changed
