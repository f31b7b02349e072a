"""What answers of a class are presumed to be behind, learned so that the wanted share of them ends in time.

Quantile tracking (online gradient descent on the pinball loss: Gibbs and Candes 2021, arXiv 2106.00170; Angelopoulos,
Candes and Tibshirani 2023, arXiv 2307.16895): an answer that ends late raises the presumption by STEP * attainment,
one in time lowers it by STEP * (1 - attainment). Summed up over n answers,

    share late = 1 - attainment + (presumption now - presumption at first) / (STEP n),

whatever answers come and whatever the presumption does to them: being bounded, it must drive the share to the target.
Only at a bound does it not: at the upper one more than that share is late and nothing more may be paid, at the lower
one fewer are and nothing less can be. A late answer raises it as much as attainment / (1 - attainment) in time lower
it, which is all that so few answers tell of so rare an event.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from decodeloop.policy.bounded import make_room
from decodeloop.types import RequestClass

STEP = 2.0  # tokens
MOST = 24.0  # tokens, either way
MEMORY = 0.01  # an answer's weight in the reported share, at least

Key = tuple[str, RequestClass]  # tenant, class


@dataclass(slots=True)
class _Class:
    tokens: float = 0.0
    in_time: float = 0.0  # share of the latest answers
    answers: int = 0


class Presumptions:
    """By tenant and class. attainment: the share to end in time. most: tokens."""

    def __init__(self, attainment: float, most: float) -> None:
        self._late_share, self._most = 1.0 - attainment, min(most, MOST)
        self._classes: dict[Key, _Class] = {}

    def tokens(self, key: Key) -> float:
        """How many answers of the class are taken to be behind from their first one on; below 0: ahead."""
        known = self._classes.get(key)
        return 0.0 if known is None else known.tokens

    def ended(self, key: Key, *, late: bool) -> None:
        make_room(self._classes, key)
        own = self._classes.setdefault(key, _Class())
        moved = own.tokens + STEP * (float(late) - self._late_share)
        own.tokens = min(max(moved, -self._most), self._most)
        own.answers += 1
        own.in_time += max(1.0 / own.answers, MEMORY) * (float(not late) - own.in_time)

    def describe(self) -> list[dict[str, Any]]:
        return [
            {
                "tenant": tenant,
                "class": str(request_class),
                "tokens": round(own.tokens, 3),
                "in_time": round(own.in_time, 3),
            }
            for (tenant, request_class), own in list(self._classes.items())
        ]
