"""Maximum mean discrepancy between two samples of answers: for targets that show nothing but text.

A Hamming kernel over (prompt, answer): two answers to the same prompt are as alike as the share of positions at which
they agree (Model Equality Testing, arXiv 2410.20247). Labels are permuted within prompts, so prompts need not be alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt

from decodeloop.types import FloatArray

Text = Sequence[Hashable]
Sample = Sequence[Sequence[Text]]  # [prompts][answers]

_AT_ONCE = 512  # permutations


def p_value(one: Sample, other: Sample, *, length: int, permutations: int, seed: int) -> float:
    """That two samples of one law are as far apart as these, by permutation. length: positions compared."""
    rng = np.random.default_rng(seed)
    grams = [_gram([*a, *b], length) for a, b in zip(one, other, strict=True)]
    signs = [np.array([1.0 / len(a)] * len(a) + [-1.0 / len(b)] * len(b)) for a, b in zip(one, other, strict=True)]
    observed = sum(float(s @ gram @ s) for s, gram in zip(signs, grams, strict=True))
    beyond, left = 1, permutations
    while left:
        count = min(left, _AT_ONCE)
        left -= count
        totals = np.zeros(count)
        for s, gram in zip(signs, grams, strict=True):
            shuffled = rng.permuted(np.tile(s, (count, 1)), axis=1)
            totals += np.einsum("bi,bi->b", shuffled @ gram, shuffled)
        beyond += int(np.count_nonzero(totals >= observed - 1e-12))
    return beyond / (permutations + 1)


def corrupted(sample: Sample, share: float, *, seed: int) -> list[list[Text]]:
    """A violation to be caught: with probability `share` an answer is cut and goes on as another prompt's would.

    Namely as its likeliest: at each position the most frequent token. So it shows where prompts have answers of their
    own, and where all prompts are answered alike, but not always the same.
    """
    rng = np.random.default_rng(seed)
    likeliest = [_likeliest(answers) for answers in sample]
    changed: list[list[Text]] = []
    for i, answers in enumerate(sample):
        other = likeliest[(i + 1 + int(rng.integers(max(len(sample) - 1, 1)))) % len(sample)]
        mixed: list[Text] = []
        for text in answers:
            cut = int(rng.integers(max(len(text) // 2, 1)))
            mixed.append((*text[:cut], *other[cut:]) if rng.random() < share else text)
        changed.append(mixed)
    return changed


def _likeliest(answers: Sequence[Text]) -> Text:
    """At each position the most frequent token, as far as the longest answer goes."""
    longest = max(map(len, answers))
    return tuple(Counter(text[i] for text in answers if len(text) > i).most_common(1)[0][0] for i in range(longest))


def power_of(
    reference: Sample, share: float, *, length: int, permutations: int, alpha: float, rounds: int, seed: int
) -> float:
    """How often two samples drawn from `reference` (with replacement), one corrupted, are told apart at `alpha`."""
    rng = np.random.default_rng(seed)
    caught = 0
    for i in range(rounds):
        one, other = (_resampled(reference, rng) for _ in range(2))
        bad = corrupted(other, share, seed=seed + 1 + i)
        caught += p_value(one, bad, length=length, permutations=permutations, seed=seed + i) <= alpha
    return caught / rounds


def _resampled(sample: Sample, rng: np.random.Generator) -> list[list[Text]]:
    """Half as many answers a prompt: the reference is twice as large as each side of a comparison."""
    return [[answers[int(i)] for i in rng.integers(len(answers), size=max(len(answers) // 2, 1))] for answers in sample]


def _gram(texts: Sequence[Text], length: int) -> FloatArray:
    """[n, n] the share of the first `length` positions at which two texts agree; ended texts agree with ended ones."""
    names: dict[Hashable, int] = {}
    coded: npt.NDArray[np.int64] = np.full((len(texts), length), -1, dtype=np.int64)
    for row, text in zip(coded, texts, strict=True):
        for i, token in enumerate(text[:length]):
            row[i] = names.setdefault(token, len(names))
    same: FloatArray = (coded[:, None, :] == coded[None, :, :]).mean(axis=2)
    return same
