"""The steady batch in closed form: like requests, always as many of them. What simulations are checked against."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.evaluation.rules import draft_ms
from decodeloop.types import CostModel


def speedup(
    cost: CostModel, survival: Sequence[float], load: int, *, context: int, draft_len: int, paid: bool = True
) -> float:
    """Of `draft_len` drafts over plain decoding at `load` requests with `context` cached tokens each."""
    cached = load * context
    plain = cost.step_ms(load, cached, load)
    drafting = draft_ms(cost, draft_len, load, cached) if paid else 0.0
    verifying = cost.step_ms(load * (1 + draft_len), cached, load)
    return (1.0 + sum(survival[:draft_len])) * plain / (drafting + verifying)


def inversion(
    cost: CostModel, survival: Sequence[float], *, context: int, draft_len: int, paid: bool = True, most: int = 5000
) -> int | None:
    """The first load at which speculation no longer pays; None: not up to `most`."""

    def pays(load: int) -> bool:
        return speedup(cost, survival, load, context=context, draft_len=draft_len, paid=paid) >= 1.0

    if pays(most):
        return None
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if pays(middle) else (low, middle)
    return high
