"""Budgets and rate limits: what is reserved before a request runs, and what it is charged after.

A counter holds all charges of its slices plus all open reservations. Stores keep counters and ask this module; any
store that runs `refused` and adds the holds in one indivisible step cannot be overspent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache

from decodeloop.governance.price import Charge
from decodeloop.governance.scope import Scope
from decodeloop.types import Identity

__all__ = ["Hold", "Limit", "Unit", "Window", "charged", "holds_for", "refused"]

ROLLING_SLICES = 12
TICKS_A_SECOND = ROLLING_SLICES  # no slice is shorter


class Unit(StrEnum):
    REQUESTS = "requests"
    TOKENS = "tokens"
    MONEY = "money"  # nanos

    def of(self, charge: Charge) -> int:
        return charge.nanos if self is Unit.MONEY else charge.tokens if self is Unit.TOKENS else charge.requests


class Window(StrEnum):
    """The time in which a limit's amount may be used.

    Short windows roll: no interval of that length ever holds more (they are counted in twelfths, and the oldest
    twelfth counts whole). Days and months are UTC's. `total` never ends.
    """

    SECOND = "second"
    MINUTE = "minute"
    HOUR = "hour"
    DAY = "day"
    MONTH = "month"
    TOTAL = "total"

    @property
    def rolls(self) -> bool:
        return self in _ROLLING_S

    def slice_at(self, now_s: float) -> int:
        """The slice that a charge at `now_s` (Unix time) belongs to."""
        if self is Window.TOTAL:
            return 0
        if self is Window.DAY:
            return int(now_s // 86400)
        if self is Window.MONTH:
            now = datetime.fromtimestamp(now_s, UTC)
            return now.year * 12 + now.month - 1
        return int(now_s * ROLLING_SLICES // _ROLLING_S[self])

    def oldest_at(self, now_s: float) -> int:
        """The oldest slice that still counts."""
        return self.slice_at(now_s) - (ROLLING_SLICES if self.rolls else 0)

    def frees_s(self, now_s: float) -> float | None:
        """Seconds until something that was used counts no more; None: never."""
        if self is Window.TOTAL:
            return None
        if self.rolls:
            width = _ROLLING_S[self] / ROLLING_SLICES
            return (self.slice_at(now_s) + 1) * width - now_s
        if self is Window.DAY:
            return (self.slice_at(now_s) + 1) * 86400 - now_s
        month = self.slice_at(now_s) + 1
        return datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp() - now_s

    def until_s(self, now_s: float) -> float:
        """When what is used now counts no more (Unix time); 0: it always does."""
        frees_s = self.frees_s(now_s)
        if frees_s is None:
            return 0.0
        return now_s + frees_s + (_ROLLING_S[self] if self.rolls else 0)


_ROLLING_S = {Window.SECOND: 1, Window.MINUTE: 60, Window.HOUR: 3600}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """At most `amount` of `unit` (money: nanos) in `window`, for each share of `scope`."""

    id: str
    scope: Scope = Scope()
    unit: Unit
    amount: int
    window: Window

    def __post_init__(self) -> None:
        if not self.id or "|" in self.id:
            raise ValueError(f"a limit's id must be text without '|', not {self.id!r}")
        if self.amount < 0:
            raise ValueError(f"limit {self.id}: the amount must not be negative")

    @property
    def is_rate(self) -> bool:
        """Whether waiting is the remedy; of a budget more must be bought."""
        return self.window.rolls

    def counter(self, identity: Identity) -> str:
        return f"{self.id}|{self.scope.share(identity)}"


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation's part in one counter: `amount` in `slice`, refused where slices >= oldest would exceed `cap`.

    until_s: from then on the slice may be forgotten (0: never).
    """

    counter: str
    slice: int
    oldest: int
    cap: int
    amount: int
    unit: Unit
    until_s: float = 0.0


def holds_for(limits: Iterable[Limit], identity: Identity, bound: Charge, now_s: float) -> tuple[Hold, ...]:
    """What a request of `identity` that costs at most `bound` must hold: a part in every limit that covers it.

    Sorted by counter, so that stores lock in one order.
    """
    tick = int(now_s * TICKS_A_SECOND)
    holds = []
    for limit in limits:
        if limit.scope.covers(identity):
            at, oldest, until_s = _times(limit.window, tick)
            amount = limit.unit.of(bound)
            holds.append(Hold(limit.counter(identity), at, oldest, limit.amount, amount, limit.unit, until_s))
    return tuple(sorted(holds, key=lambda hold: hold.counter))


@lru_cache(maxsize=64)
def _times(window: Window, tick: int) -> tuple[int, int, float]:
    """Its slice, the oldest that counts, and until when: they change with ticks at most."""
    now_s = tick / TICKS_A_SECOND
    return window.slice_at(now_s), window.oldest_at(now_s), window.until_s(now_s)


def refused(holds: Sequence[Hold], used: Sequence[int]) -> int | None:
    """The place of the first hold that doesn't fit; used: by hold, its counter's sum over slices >= oldest."""
    for place, (hold, total) in enumerate(zip(holds, used, strict=True)):
        if hold.amount > 0 and total + hold.amount > hold.cap:
            return place
    return None


def charged(holds: Sequence[Hold], charge: Charge) -> tuple[Hold, ...]:
    """The holds with what was really used. A store adds the differences, to the slices that were reserved."""
    return tuple(replace(hold, amount=hold.unit.of(charge)) for hold in holds)
