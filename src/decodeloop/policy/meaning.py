"""What a draft's word has turned out to mean, in plain numbers: as `calibration` has it in arrays, a draft at a time.

Drafts of equal matches say the same and standings are grained, so many were looked at since something was learned last.
What a draft says is looked up once, in whichever standing; logarithms of it are the same whatever is believed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log, log1p, sqrt

from decodeloop.policy.acceptance import LEAST as LEAST_LIKELY
from decodeloop.policy.acceptance import MOST as MOST_LIKELY

LEAST = 0.01  # confidence is clipped to LEAST .. 1 - LEAST
MOST_LOGIT = 40.0
BINS = 10
BINS_A_LOGIT, MIDDLE = BINS / 8.0, BINS / 2.0  # even in logits between 0.02 and 0.98, where most drafts are
BIN_WEIGHT = 32.0  # labels
DOUBT, DOUBT_WEIGHT = 1.0, 8.0  # standard errors; labels that a bin without any is taken to have
MOST_KNOWN = 4096  # meanings that are remembered

Said = tuple[float, ...]  # survival by a drafter's word
Curves = list[tuple[list[float], list[float], list[float]]]  # [K] a slot's weights, its bins' labels and hits
Terms = list[tuple[float, float]]  # log c and -log(1 - c) of conditional confidences c


class Meaning:
    """Of one draft, as far as it was asked for. own: its request's standing. first: survival of its first token.

    Of first tokens the lower credible bound: whether to verify at all hangs on them, and what they are worth is learned
    without verifying anything, since every proposal is compared with the token that comes.
    """

    __slots__ = ("_known", "_own", "_terms", "curves")

    def __init__(self, terms: Terms, curves: Curves, own: float) -> None:
        self.curves = curves
        self._terms, self._own = terms, own
        self._known: list[float] = []
        self._look_further(1)

    @property
    def first(self) -> float:
        return self._known[0]

    def survival(self, most: int) -> list[float]:
        """Of the first `most` tokens, or as many as there are."""
        if len(self._known) < most:
            self._look_further(min(most, len(self._terms), len(self.curves)))
        return self._known[:most]  # a copy: the rest may be asked for yet

    def _look_further(self, most: int) -> None:
        known, own = self._known, self._own
        survives = known[-1] if known else 1.0
        for position in range(len(known), most):
            log_c, log_rest = self._terms[position]
            (constant, rising, falling, standing), labels, hits = self.curves[position]
            z = constant + rising * log_c + falling * log_rest + standing * own
            place = 0 if z <= -4.0 else BINS - 1 if z >= 4.0 else int(BINS_A_LOGIT * z + MIDDLE)
            by_curve = 1.0 / (1.0 + exp(-z if z > -MOST_LOGIT else MOST_LOGIT))
            p = (hits[place] + BIN_WEIGHT * by_curve) / (labels[place] + BIN_WEIGHT)
            if not position:
                p -= DOUBT * sqrt(p * (1.0 - p) / (labels[place] + DOUBT_WEIGHT))
            survives *= LEAST_LIKELY if p < LEAST_LIKELY else MOST_LIKELY if p > MOST_LIKELY else p
            known.append(survives)


class Meanings:
    """What was looked at lately. curves: of a slot, as learned by now."""

    def __init__(self, curves: Callable[[int], Curves]) -> None:
        self._curves_of = curves
        self._curves: dict[int, Curves] = {}  # by slot
        self._words: dict[Said, tuple[Terms, dict[tuple[int, float], Meaning]]] = {}
        self._count = 0

    def of(self, slot: int, said: Said, own: float) -> Meaning:
        """What `said`, which is not empty, means."""
        curves = self._curves.get(slot)
        if curves is None:
            curves = self._curves[slot] = self._curves_of(slot)
        word = self._words.get(said)
        if word is None:
            word = self._words[said] = _terms(said), {}
        terms, meanings = word
        meaning = meanings.get((slot, own))
        if meaning is None or meaning.curves is not curves:
            meaning = meanings[slot, own] = Meaning(terms, curves, own)
            self._count += 1
            if self._count > MOST_KNOWN:
                self._words.clear()
                self._count = 0
        return meaning

    def forget(self) -> None:
        """Something was learned."""
        self._curves.clear()


def _terms(said: Said) -> Terms:
    """[K] of survival that doesn't increase."""
    terms, before = [], 1.0
    for survives in said:
        c = min(max(survives / max(before, 1e-12), LEAST), 1.0 - LEAST)
        terms.append((log(c), -log1p(-c)))
        before = survives
    return terms
