"""Chi-squared tests of what was said against a law, or against what was said otherwise; pooled over groups.

A group is what shares a law: answers to one prompt. Cells are a group's likeliest outcomes and one for the rest.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

from decodeloop.evaluation.lossless.tails import chi2_tail, noncentrality_for

CELLS = 40  # the likeliest outcomes, beside the rest
LEAST_EXPECTED = 8.0  # in a cell: under that its square isn't chi-squared

Counts = Mapping[Hashable, int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """distance: the largest total variation over the groups' cells, as counted (noise included)."""

    statistic: float
    df: int
    p_value: float
    samples: int
    distance: float


def against_law(groups: Iterable[tuple[Counts, Mapping[Hashable, float]]], *, cells: int = CELLS) -> Evidence:
    """One sample a group against exact probabilities. What a law leaves out counts as the rest."""
    pooled = _Pooled()
    for counts, law in groups:
        total = sum(counts.values())
        likely = sorted(law, key=lambda key: -law[key])[:cells]
        kept = [key for key in likely if law[key] * total >= LEAST_EXPECTED]
        observed = [counts.get(key, 0) for key in kept]
        expected = [law[key] * total for key in kept]
        rest = total - sum(expected)
        if rest >= LEAST_EXPECTED or (rest > 1e-6 * total and not kept):
            observed.append(total - sum(observed))
            expected.append(rest)
        elif kept and rest > 0.0:  # too rare for a cell of its own: joins the rarest
            observed[-1] += total - sum(observed)
            expected[-1] += rest
        elif sum(observed) < total:
            return Evidence(math.inf, 1, 0.0, total, 1.0)  # said what has no probability
        squares = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
        apart = 0.5 * sum(abs(o - e) for o, e in zip(observed, expected, strict=True)) / max(total, 1)
        pooled.add(squares, len(expected) - 1, total, apart)
    return pooled.evidence()


def against_each_other(groups: Iterable[tuple[Counts, Counts]], *, cells: int = CELLS) -> Evidence:
    """Two samples a group. Cells are chosen by both counts together, so the choice favours neither."""
    pooled = _Pooled()
    for one, other in groups:
        sizes = sum(one.values()), sum(other.values())
        total = sum(sizes)
        if not all(sizes):
            raise ValueError("a group without samples of both kinds can't be compared")
        both = Counter(one) + Counter(other)
        least = LEAST_EXPECTED * total / min(sizes)
        kept = [key for key, count in both.most_common(cells) if count >= least]
        table = [(one.get(key, 0), other.get(key, 0)) for key in kept]
        rest = sizes[0] - sum(a for a, _ in table), sizes[1] - sum(b for _, b in table)
        if sum(rest) >= least or not table:
            table.append(rest)
        elif sum(rest):
            table[-1] = table[-1][0] + rest[0], table[-1][1] + rest[1]
        squares = 0.0
        for row in table:
            for count, size in zip(row, sizes, strict=True):
                expected = sum(row) * size / total
                squares += (count - expected) ** 2 / expected
        apart = 0.5 * sum(abs(a / sizes[0] - b / sizes[1]) for a, b in table)
        pooled.add(squares, len(table) - 1, total, apart)
    return pooled.evidence()


def detectable(
    samples: int, *, groups: int, alpha: float, power: float, two_samples: bool, cells: int = CELLS
) -> float:
    """The total variation over cells, alike in every group, that fails at `alpha` with probability `power`.

    samples: a group (of each kind, for two). chi-squared distance >= 4 TV^2, with equality in the case hardest to see.
    """
    df = groups * cells
    shift = noncentrality_for(power, alpha, df)
    return min(1.0, math.sqrt(shift / (groups * samples * (2.0 if two_samples else 4.0))))


class _Pooled:
    def __init__(self) -> None:
        self._squares, self._df, self._samples, self._apart = 0.0, 0, 0, 0.0

    def add(self, squares: float, df: int, samples: int, apart: float) -> None:
        self._squares += squares
        self._df += df
        self._samples += samples
        self._apart = max(self._apart, apart)

    def evidence(self) -> Evidence:
        p = chi2_tail(self._squares, self._df) if self._df else 1.0
        return Evidence(self._squares, self._df, p, self._samples, self._apart)
