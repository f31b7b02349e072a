"""Which drafter should serve a request: Hedge (Freund and Schapire 1997) with full information.

Free drafters are scored against the text at every step, played or not, and the paid ones by what is expected of them,
so every step gives a reward to each. The choice falls before anything is drawn: choosing between sampled drafts after
seeing them would change the target's distribution.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from decodeloop.types import FloatArray

MEMORY = 12.0  # steps that a request's own rewards reach back
CLASS_MEMORY = 256.0
CLASS_WEIGHT = 4.0  # steps that the class's record counts for
TEMPERATURE = 0.25  # tokens a step: a lead of this much is worth a factor e
GOLDEN = 0.6180339887498949


class Record:
    """Discounted mean reward of each drafter, in tokens a step. One of a class, and one of each request."""

    def __init__(self, memory: float) -> None:
        self._kept = 1.0 - 1.0 / memory
        self._sums: dict[str, tuple[float, float]] = {}  # drafter -> (rewards, steps), discounted

    def add(self, drafter: str, reward: float) -> None:
        rewards, steps = self._sums.get(drafter, (0.0, 0.0))
        self._sums[drafter] = rewards * self._kept + reward, steps * self._kept + 1.0

    def mean(self, drafter: str, prior: float, weight: float) -> float:
        rewards, steps = self._sums.get(drafter, (0.0, 0.0))
        return (rewards + weight * prior) / (steps + weight)

    def means(self) -> Mapping[str, float]:
        return {drafter: rewards / steps for drafter, (rewards, steps) in self._sums.items()}


def weights(rewards: FloatArray) -> FloatArray:
    """[D] expected rewards -> [D] Hedge's probabilities."""
    lead = np.exp((rewards - rewards.max()) / TEMPERATURE)
    shares: FloatArray = lead / lead.sum()
    return shares


class Draw:
    """Draws without chance: a golden-ratio sequence, so that shares are met evenly and a run can be repeated."""

    def __init__(self) -> None:
        self._point = 0.5

    def pick(self, drafters: Sequence[str], rewards: Sequence[float]) -> str:
        """One of `drafters`, as often as its weight says."""
        if len(drafters) == 1:
            return drafters[0]
        self._point = (self._point + GOLDEN) % 1.0
        reached = int(np.searchsorted(np.cumsum(weights(np.array(rewards))), self._point))
        return drafters[min(reached, len(drafters) - 1)]
