"""Many requests' reservations and settlements in a few statements: each that a thread runs costs it two turns.

What comes out is what some order of the single steps would give: settlements that nobody waits for go before
reservations, which so find what they release.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeVar

from decodeloop.gateway.store import Opening, Refusal, Reserved
from decodeloop.gateway.store import sqlite_steps as steps
from decodeloop.gateway.store.columns import holds_json, read_holds, reservation_json, values
from decodeloop.governance.ledger import LedgerRow, charge_of
from decodeloop.governance.quota import Hold, charged, refused

__all__ = ["Reserve", "Settle", "Step", "together"]

T = TypeVar("T")
Step = Callable[[sqlite3.Connection], Any]

MOST_ROWS = 64  # in a statement; powers of two, so that few statements are prepared


@dataclass(frozen=True, slots=True)
class Reserve:
    opening: Opening
    instance: str
    now_s: float

    def __call__(self, db: sqlite3.Connection) -> Reserved:
        return steps.reserve(db, self.opening, self.instance, self.now_s)


@dataclass(frozen=True, slots=True)
class Settle:
    row: LedgerRow

    def __call__(self, db: sqlite3.Connection) -> None:
        steps.settle(db, self.row)


def together(db: sqlite3.Connection, each: Sequence[Step]) -> list[Any]:
    """Their results, in their order."""
    results: list[Any] = []
    for is_plain, run in groupby(each, _is_plain):
        group = list(run)
        results += _grouped(db, group) if is_plain and len(group) > 1 else [step(db) for step in group]
    return results


def _is_plain(step: Step) -> bool:
    return isinstance(step, Settle) or (isinstance(step, Reserve) and step.opening.idempotency is None)


def _grouped(db: sqlite3.Connection, group: Sequence[Step]) -> list[Any]:
    settled = [step for step in group if isinstance(step, Settle)]
    opened = [step for step in group if isinstance(step, Reserve)]
    if {step.opening.reservation.id for step in opened} & {step.row.request_id for step in settled}:
        return [step(db) for step in group]
    _settle(db, [step.row for step in settled])
    reserved = iter(_reserve(db, opened))
    return [next(reserved) if isinstance(step, Reserve) else None for step in group]


def _settle(db: sqlite3.Connection, rows: Sequence[LedgerRow]) -> None:
    by_id = {row.request_id: row for row in reversed(rows)}  # the first of several counts
    held: dict[str, tuple[Hold, ...]] = {}
    for ids in _portions(list(by_id)):
        marks = ", ".join("?" * len(ids))
        found = db.execute(f"DELETE FROM reservations WHERE id IN ({marks}) RETURNING id, holds", ids)
        held.update({id: read_holds(holds) for id, holds in found.fetchall()})
    amounts: list[tuple[Hold, int]] = []
    entered: list[tuple[Any, ...]] = []
    for id, holds in held.items():
        row = by_id[id]
        real = charged(holds, charge_of(row.price, row.usage))
        amounts += [(before, after.amount - before.amount) for before, after in zip(holds, real, strict=True)]
        entered.append((*values(row), holds_json(real)))
    _add(db, amounts)
    _insert(db, steps.INSERT, entered)
    for row in rows:
        if row.request_id not in held or by_id[row.request_id] is not row:
            steps.settle(db, row)  # it is not open, or not any more
        else:
            steps.free_key(db, row)


def _reserve(db: sqlite3.Connection, each: Sequence[Reserve]) -> list[Reserved]:
    """As one after the other: each sees what those before it took."""
    counters = list(dict.fromkeys((hold.counter, hold.oldest) for step in each for hold in step.opening.holds))
    used = {key: total for part in _portions(counters) for key, total in zip(part, steps.used(db, part), strict=True)}
    taken: defaultdict[str, list[Hold]] = defaultdict(list)
    results: list[Reserved] = []
    entered: list[tuple[Any, ...]] = []
    for step in each:
        holds = step.opening.holds
        before = tuple(
            used[hold.counter, hold.oldest] + sum(t.amount for t in taken[hold.counter] if t.slice >= hold.oldest)
            for hold in holds
        )
        place = refused(holds, before)
        if place is not None:
            results.append(Reserved(before, Refusal.LIMIT, place))
            continue
        results.append(Reserved(before))
        for hold in holds:
            taken[hold.counter].append(hold)
        reservation = step.opening.reservation
        entered.append((reservation.id, step.instance, reservation_json(reservation), holds_json(holds)))
    _add(db, [(hold, hold.amount) for holds in taken.values() for hold in holds])
    _insert(db, "INSERT INTO reservations VALUES ", entered)
    return results


def _add(db: sqlite3.Connection, amounts: Sequence[tuple[Hold, int]]) -> None:
    """A counter is changed once, by all of it."""
    sums: dict[tuple[str, int], tuple[Hold, int]] = {}
    for hold, amount in amounts:
        _, before = sums.get((hold.counter, hold.slice), (hold, 0))
        sums[hold.counter, hold.slice] = hold, before + amount
    for part in _portions(list(sums.values())):
        steps.add(db, part)


def _insert(db: sqlite3.Connection, statement: str, rows: Sequence[tuple[Any, ...]]) -> None:
    for part in _portions(rows):
        marks = f"({', '.join('?' * len(part[0]))})"
        db.execute(f"{statement}{', '.join([marks] * len(part))}", [value for row in part for value in row])


def _portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """In powers of two."""
    begin = 0
    while begin < len(items):
        size = min(MOST_ROWS, 1 << (len(items) - begin).bit_length() - 1)
        yield items[begin : begin + size]
        begin += size
