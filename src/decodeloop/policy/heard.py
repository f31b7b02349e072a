"""What free drafters say for the requests of a step, and what of it is worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from decodeloop.types import FloatArray


class Proposal(NamedTuple):
    """For the request in `row` of the step. said: survival by the drafter's word, not empty."""

    row: int
    drafter: str
    said: Sequence[float]


class Heard:
    """P proposals. worth: the least survival of a first token that could pay. first: [P] survival of first tokens.
    survival: [P, K], perhaps 0 where first < worth."""

    def __init__(
        self, proposals: Sequence[Proposal], worth: float, first: Sequence[float], survival: FloatArray
    ) -> None:
        self.proposals, self.survival = proposals, survival
        self._worth, self._first = worth, first

    @cached_property
    def value(self) -> list[float]:
        """[P] expected accepted tokens."""
        value: list[float] = self.survival.sum(axis=1).tolist()
        return value

    def best(self) -> dict[int, int]:
        """row -> its worthy proposal of most value, the first among equals."""
        value, best = self.value, dict[int, int]()
        for place, (proposal, first) in enumerate(zip(self.proposals, self._first, strict=True)):
            if first >= self._worth:
                rival = best.get(proposal.row)
                if rival is None or value[place] > value[rival]:
                    best[proposal.row] = place
        return best

    def worthy(self, row: int) -> dict[str, int]:
        """drafter -> its proposal for that row, if it is worth a look."""
        return {
            proposal.drafter: place
            for place, (proposal, first) in enumerate(zip(self.proposals, self._first, strict=True))
            if proposal.row == row and first >= self._worth
        }

    def likeliest(self) -> dict[int, float]:
        """row -> survival of the likeliest first token that is proposed for it."""
        found: dict[int, float] = {}
        for proposal, first in zip(self.proposals, self._first, strict=True):
            found[proposal.row] = max(first, found.get(proposal.row, 0.0))
        return found
