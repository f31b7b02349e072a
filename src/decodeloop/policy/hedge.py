"""Which drafter should serve a request: Hedge (Freund and Schapire 1997) with full information.

Free drafters are scored against the text at every step, played or not, and the paid ones by what is expected of them,
so every step gives a reward to each. The choice falls before anything is drawn: choosing between sampled drafts after
seeing them would change the target's distribution.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

TEMPERATURE = 0.1  # tokens a step: a lead of this much is worth a factor e
GOLDEN = 0.6180339887498949


def weights(rewards: Sequence[float]) -> list[float]:
    """Hedge's probabilities for expected rewards in tokens a step."""
    best = max(rewards)
    leads = [math.exp((reward - best) / TEMPERATURE) for reward in rewards]
    total = sum(leads)
    return [lead / total for lead in leads]


class Draw:
    """Draws without chance: a golden-ratio sequence, so that shares are met evenly and a run can be repeated."""

    def __init__(self) -> None:
        self._point = 0.5

    def pick(self, drafters: Sequence[str], rewards: Sequence[float]) -> str:
        """One of `drafters`, as often as its weight says."""
        self._point = (self._point + GOLDEN) % 1.0
        reached = 0.0
        for drafter, weight in zip(drafters, weights(rewards), strict=True):
            reached += weight
            if self._point < reached:
                return drafter
        return drafters[-1]
