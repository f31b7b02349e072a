"""A roll-out watched block by block: stop as soon as it is sure, look as often as you like.

The bounds hold at all blocks together (`statistics.confidence_sequence`), so stopping when they exclude equality is
sound where a t interval, looked at again and again, is not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from decodeloop.evaluation.results import Results
from decodeloop.evaluation.statistics import confidence_sequence, log_ratios


class Standing(StrEnum):
    FASTER = "faster"
    SLOWER = "slower"
    OPEN = "open"  # not decided yet


@dataclass(frozen=True, slots=True)
class Canary:
    """ratio: of rates, new over old. low, high: valid at every block so far. decided_at: the block that settled it."""

    standing: Standing
    ratio: float
    low: float
    high: float
    blocks: int
    decided_at: int | None


def watch(new: Sequence[float], old: Sequence[float], *, level: float = 0.95) -> Canary:
    """Rates by block, in their order. The first decision stands: later blocks don't undo it.

    Raises ValueError when the blocks are no pairs, or there are none.
    """
    logs = log_ratios(new, old)
    if not len(logs):
        raise ValueError("no block was measured")
    lows, highs = confidence_sequence(logs, level=level)
    for block, (low, high) in enumerate(zip(lows, highs, strict=True)):
        if low > 0.0 or high < 0.0:
            standing = Standing.FASTER if low > 0.0 else Standing.SLOWER
            mean = float(logs[: block + 1].mean())
            return Canary(standing, math.exp(mean), math.exp(low), math.exp(high), block + 1, block + 1)
    low, high = float(lows[-1]), float(highs[-1])
    return Canary(Standing.OPEN, math.exp(float(logs.mean())), math.exp(low), math.exp(high), len(logs), None)


def decided(results: Results, *, level: float = 0.95) -> bool:
    """Whether every arm stands decided against the first at every level."""
    base, *others = (arm.label for arm in results.plan.arms)
    for load in results.plan.levels:
        if len(results.complete_blocks(load)) < 2:
            return False
        run = results.run(load)
        if any(watch(run.rates(arm), run.rates(base), level=level).standing is Standing.OPEN for arm in others):
            return False
    return True
