"""What free drafters say for a request of the step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from decodeloop.policy.meaning import Meaning


class Proposal(NamedTuple):
    """said: survival by the drafter's word, not empty. meaning: what that word has turned out to mean."""

    drafter: str
    said: Sequence[float]
    meaning: Meaning

    @property
    def value(self) -> float:
        """Expected accepted tokens. What follows the first is taken at the drafter's word, which for comparing two of a
        request's proposals is good enough: what is played is calibrated whole."""
        return self.meaning.first * sum(self.said) / max(self.said[0], 1e-12)
