"""Requests, limits and rows for tests of governance, and a clock that stands still."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from decodeloop.gateway.store import Opening
from decodeloop.governance.ledger import LedgerRow, Outcome, Reservation, bound_charge
from decodeloop.governance.price import Price
from decodeloop.governance.quota import Hold, Limit, Unit, Window, holds_for
from decodeloop.governance.scope import Scope
from decodeloop.types import Identity, Usage

NOON_S = 1_800_000_000.0
ANA = Identity("acme", "ana", "coder", "chat", "key-ana")
PRICE = Price(prompt=1.0, cached=0.5, completion=4.0, second_cost=0.001)
NOTHING = Usage()


@dataclass
class Clock:
    now_s: float = NOON_S

    def __call__(self) -> float:
        return self.now_s


def limit(amount: int, unit: Unit = Unit.TOKENS, window: Window = Window.TOTAL, **scope: str) -> Limit:
    name = f"{unit.value}-{window.value}-{'-'.join(scope.values()) or 'all'}"
    return Limit(id=name, scope=Scope(**scope), unit=unit, amount=amount, window=window)


def row(id: str, usage: Usage = NOTHING, outcome: Outcome = Outcome.COMPLETED, **changes: Any) -> LedgerRow:
    values: dict[str, Any] = {
        "identity": ANA,
        "model": "tiny",
        "started_s": NOON_S,
        "ended_s": NOON_S,
        "price": PRICE,
        **changes,
    }
    billed = values["price"].of(usage)
    return LedgerRow(request_id=id, usage=usage, outcome=outcome, billed=billed, **values)


def opening(id: str, limits: Sequence[Limit], bound: Usage, *, now_s: float = NOON_S, **changes: Any) -> Opening:
    reservation = Reservation(row=row(id, started_s=now_s), bound=bound)
    holds = holds_for(limits, ANA, bound_charge(PRICE, bound), now_s)
    return Opening(reservation=reservation, holds=holds, **changes)


async def agree(books: Any, holds: Sequence[Hold]) -> None:
    """Counters hold what the ledger was charged plus what is open: checked over all time, for `holds`' counters."""
    await books.flush()
    together: Counter[str] = Counter()
    by_unit = {hold.counter: hold.unit for hold in holds}
    for entry in await books.rows(0.0, 1e12):
        tokens = entry.usage.prompt + entry.usage.completion
        requests = 1 if entry.entry == 0 else 0
        for counter, unit in by_unit.items():
            together[counter] += {Unit.TOKENS: tokens, Unit.MONEY: entry.billed, Unit.REQUESTS: requests}[unit]
    for _, held in await books.open():
        for hold in held:
            together[hold.counter] += hold.amount
    used = await books.used([(counter, 0) for counter in by_unit])
    assert dict(zip(by_unit, used, strict=True)) == {counter: together[counter] for counter in by_unit}
