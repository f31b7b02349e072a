"""Step times as the cost surface holds them: curves over tokens, and what regions of it have turned out to be."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from decodeloop.types import FloatArray, IntArray

CELLS = 33  # of tokens, half an octave each: 1 .. 65536
CELL_GAIN = 0.02  # of one region against the others, for good
CELL_SHRINKAGE, FIRST_VISITS = 4.0, 4.0  # visits at which a cell is believed half; that it is taken to have had
CELL_TRUST = 64.0  # visits beyond which it is believed no more
MOST_HELD = 4096  # token counts whose times are held; prompts may be longer

Point = tuple[float, float, int]  # ms, what each context token more adds to it, and at how much context


@dataclass(frozen=True, slots=True)
class Curve:
    """knots: [J] tokens. ms: [J] at `near` context tokens, linear between knots, so that one value and many agree.
    slope: [J] what each context token more adds."""

    knots: FloatArray
    ms: FloatArray
    slope: FloatArray
    near: int
    _counts: list[tuple[float, float]] = field(default_factory=list)  # (ms, slope) of 0, 1, .. tokens, as asked for

    def point(self, tokens: int) -> Point:
        if tokens < len(self._counts):
            return *self._counts[tokens], self.near
        ms, slope = np.interp(tokens, self.knots, self.ms), np.interp(tokens, self.knots, self.slope)
        return float(ms), float(slope), self.near

    def ms_at(self, tokens: IntArray, context: int) -> FloatArray:
        ms: FloatArray = np.interp(tokens, self.knots, self.ms + self.slope * (context - self.near))
        return ms

    def ms_from(self, first: int, count: int, context: int) -> list[float]:
        """[count] as ms_at, of `first` tokens and each one more."""
        end, beyond = first + count, context - self.near
        if end > MOST_HELD:
            return list(map(float, self.ms_at(np.arange(first, end), context)))
        if end > len(self._counts):
            tokens = np.arange(len(self._counts), min(2 * end, MOST_HELD))
            ms, slope = np.interp(tokens, self.knots, self.ms), np.interp(tokens, self.knots, self.slope)
            self._counts.extend(zip(ms.tolist(), slope.tolist(), strict=True))
        return [ms + slope * beyond for ms, slope in self._counts[first:end]]


class Region:
    """What steps of about as many sequences and about as much context have shown, per cell of tokens.

    nearness: [J, CELLS] how much each cell says about each knot.
    """

    def __init__(self, nearness: FloatArray) -> None:
        self._nearness = nearness
        self._deviation = np.zeros(CELLS)
        self.visits = np.zeros(CELLS)

    def biases(self) -> FloatArray:
        """[J] log ratio to the fit: at each knot the nearby cells' mean, shrunk where few were seen."""
        trust = np.minimum(self.visits, CELL_TRUST)
        biases: FloatArray = self._nearness @ (trust * self._deviation) / (self._nearness @ trust + CELL_SHRINKAGE)
        return biases

    def bias_at(self, knot: int) -> float:
        """biases()[knot]"""
        near = self._nearness[knot] * np.minimum(self.visits, CELL_TRUST)
        return float(near @ self._deviation / (near.sum() + CELL_SHRINKAGE))

    def learn(self, cell: int, surprise: float) -> None:
        visits = float(self.visits[cell])
        self._deviation[cell] += max(1.0 / (visits + FIRST_VISITS), CELL_GAIN) * surprise
        self.visits[cell] = visits + 1.0


def nearness(places: FloatArray) -> FloatArray:
    """[J, CELLS] how much each cell says about each place, in cells."""
    near: FloatArray = np.exp(-0.5 * np.square(places[:, None] - np.arange(CELLS)))
    return near
