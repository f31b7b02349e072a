"""From which load on speculation stops paying, by what is believed now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decodeloop.policy.allocate import Items, allocate
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.cost_start import speculating_ms
from decodeloop.types import FloatArray

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WORTH = 1.01  # of plain: gains below that are no gains


def cliff(costs: StepCosts, survival: FloatArray, context_tokens: int, draft_len: int) -> dict[str, Any]:
    """For batches of like requests: the gain at each load, and the interval in which it ends.

    survival: [K] of each request; context_tokens: of each. `fixed`: `draft_len` tokens always. The interval is
    [last load that gains, first that does not]; None: not reached.
    """
    adaptive, fixed = {}, {}
    for load in LOADS:
        tokens = np.arange(load, load * (1 + len(survival)) + 1)
        ms = costs.step_ms_many(tokens, load * context_tokens, load)
        plain = load / float(ms[0])
        ms[1:] += speculating_ms(costs, load)
        adaptive[load] = allocate(Items(np.tile(survival, (load, 1))), ms).score / plain
        verified = 1.0 + float(survival[:draft_len].sum())
        fixed[load] = verified * float(ms[0] / ms[load * min(draft_len, len(survival))])
    return {
        "context_tokens": context_tokens,
        "adaptive": {"gain": _rounded(adaptive), "ends_between": _ends(adaptive)},
        "fixed": {"draft_len": draft_len, "gain": _rounded(fixed), "ends_between": _ends(fixed)},
    }


def cliffs(
    costs: StepCosts, believed: Sequence[Mapping[str, Any]], context_tokens: int, draft_len: int
) -> list[dict[str, Any]]:
    """Of every tenant, class and drafter that something is believed of: its names and its `survival`."""
    names = ("tenant", "class", "drafter")
    return [
        {**{n: entry[n] for n in names}, **cliff(costs, np.array(entry["survival"]), context_tokens, draft_len)}
        for entry in believed
    ]


def _ends(gains: dict[int, float]) -> list[int | None]:
    gaining = [load for load in LOADS if gains[load] >= WORTH]
    last = gaining[-1] if gaining else None
    lost = [load for load in LOADS if gains[load] < WORTH and (last is None or load > last)]
    return [last, lost[0] if lost else None]


def _rounded(gains: dict[int, float]) -> dict[str, float]:
    return {str(load): round(gain, 3) for load, gain in gains.items()}
