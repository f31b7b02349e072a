"""What the books do, as steps of an SQLite transaction.

`counters` holds settled charges and open reservations together. `ledger.holds` says to which counters a row was
charged, so that counters can be computed anew.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from decodeloop.gateway.store import Opening, Record, Refusal, Reserved
from decodeloop.gateway.store.columns import (
    ADDED,
    COLUMNS,
    NAMES,
    from_values,
    holds_json,
    read_holds,
    read_reservation,
    reservation_json,
    values,
)
from decodeloop.gateway.store.sqlite_answers import taken
from decodeloop.governance.ledger import (
    LedgerRow,
    Outcome,
    Reservation,
    charge_of,
    correction,
    estimated,
    marked,
    with_checkpoint,
)
from decodeloop.governance.quota import Hold, charged, refused
from decodeloop.types import Usage

__all__ = [
    "INSERT",
    "add",
    "beat",
    "checkpoint",
    "create",
    "extend",
    "forget_instance",
    "free_key",
    "open_reservations",
    "put_record",
    "rebuild",
    "records",
    "remove_record",
    "reserve",
    "revision",
    "rows",
    "settle",
    "used",
]

Connection = sqlite3.Connection

_COLUMNS = ", ".join(f"{name} {kind} NOT NULL" for name, kind, _ in COLUMNS)
_SELECT = f"SELECT {', '.join(NAMES)}, holds FROM ledger"
INSERT = f"INSERT INTO ledger ({', '.join(NAMES)}, holds) VALUES "
_INSERT = f"{INSERT}({', '.join('?' * (len(NAMES) + 1))})"

_TABLES = (
    f"CREATE TABLE IF NOT EXISTS ledger ({_COLUMNS}, holds text NOT NULL, PRIMARY KEY (request_id, entry))",
    """CREATE TABLE IF NOT EXISTS counters (counter text NOT NULL, slice integer NOT NULL, used integer NOT NULL,
       until_s real NOT NULL, PRIMARY KEY (counter, slice)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS reservations (id text PRIMARY KEY, instance text NOT NULL, body text NOT NULL,
       holds text NOT NULL) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS idempotency (owner text NOT NULL, key text NOT NULL, digest blob NOT NULL,
       request_id text NOT NULL UNIQUE, at_s real NOT NULL, PRIMARY KEY (owner, key)) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS answers (request_id text PRIMARY KEY, organization text NOT NULL, at_s real NOT NULL,
       size integer NOT NULL, body blob NOT NULL)""",
    "CREATE INDEX IF NOT EXISTS answers_of ON answers (organization, at_s, size)",
    "CREATE TABLE IF NOT EXISTS instances (id text PRIMARY KEY, seen_s real NOT NULL) WITHOUT ROWID",
    """CREATE TABLE IF NOT EXISTS records (kind text NOT NULL, id text NOT NULL, body text NOT NULL,
       PRIMARY KEY (kind, id)) WITHOUT ROWID""",
    "CREATE TABLE IF NOT EXISTS revision (value integer NOT NULL)",
    "INSERT INTO revision SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM revision)",
)

_SUM = "(SELECT coalesce(sum(used), 0) FROM counters WHERE counter = ? AND slice >= ?)"


def create(db: Connection) -> None:
    for statement in _TABLES:
        db.execute(statement)
    there = {name for _, name, *_ in db.execute("PRAGMA table_info(ledger)")}
    for name in ADDED:
        if name not in there:
            db.execute(f"ALTER TABLE ledger ADD COLUMN {name} text NOT NULL DEFAULT ''")


def reserve(db: Connection, opening: Opening, instance: str, now_s: float) -> Reserved:
    refused_key = None if opening.idempotency is None else taken(db, opening.idempotency)
    if refused_key is not None:
        return refused_key
    before = used(db, [(hold.counter, hold.oldest) for hold in opening.holds])
    place = refused(opening.holds, before)
    if place is not None:
        return Reserved(before, Refusal.LIMIT, place)
    add(db, [(hold, hold.amount) for hold in opening.holds])
    id = opening.reservation.id
    body = reservation_json(opening.reservation)
    db.execute("INSERT INTO reservations VALUES (?, ?, ?, ?)", (id, instance, body, holds_json(opening.holds)))
    if opening.idempotency is not None:
        named = opening.idempotency
        db.execute("INSERT INTO idempotency VALUES (?, ?, ?, ?, ?)", (named.owner, named.key, named.digest, id, now_s))
    return Reserved(before)


def extend(db: Connection, reservation: Reservation, holds: Sequence[Hold]) -> Reserved:
    id = reservation.id
    found = db.execute("SELECT body, holds FROM reservations WHERE id = ?", (id,)).fetchone()
    if found is None:  # charged by estimate meanwhile: it may not go on
        return Reserved(refusal=Refusal.LIMIT)
    more = [replace(new, amount=new.amount - old.amount) for new, old in zip(holds, read_holds(found[1]), strict=True)]
    before = used(db, [(hold.counter, hold.oldest) for hold in more])
    place = refused(more, before)
    if place is not None:
        return Reserved(before, Refusal.LIMIT, place)
    add(db, [(hold, hold.amount) for hold in more])
    body = reservation_json(with_checkpoint(reservation, read_reservation(found[0])))
    db.execute("UPDATE reservations SET body = ?, holds = ? WHERE id = ?", (body, holds_json(holds), id))
    return Reserved(before)


def checkpoint(db: Connection, usages: Sequence[tuple[str, Usage]]) -> None:
    for id, usage in usages:
        found = db.execute("SELECT body FROM reservations WHERE id = ?", (id,)).fetchone()
        if found is not None:
            db.execute(
                "UPDATE reservations SET body = ? WHERE id = ?",
                (reservation_json(marked(read_reservation(found[0]), usage)), id),
            )


def settle(db: Connection, row: LedgerRow) -> None:
    open_ = db.execute("DELETE FROM reservations WHERE id = ? RETURNING holds", (row.request_id,)).fetchone()
    if open_ is not None:
        _enter(db, row, read_holds(open_[0]))
        free_key(db, row)
        return
    entries = db.execute(f"{_SELECT} WHERE request_id = ? ORDER BY entry", (row.request_id,)).fetchall()
    if not entries:  # it was served while nothing could be reserved; or it never came to be
        if row.usage != Usage():
            _enter(db, row, ())
    elif len(entries) == 1 and from_values(entries[0]).outcome is Outcome.ESTIMATED:
        _correct(db, from_values(entries[0]), row, read_holds(entries[0][-1]))
        free_key(db, row)


def free_key(db: Connection, row: LedgerRow) -> None:
    """What failed and costs nothing may be tried again."""
    if row.outcome is Outcome.FAILED and not row.billed:
        db.execute("DELETE FROM idempotency WHERE request_id = ?", (row.request_id,))


def _enter(db: Connection, row: LedgerRow, held: Sequence[Hold]) -> None:
    real = charged(held, charge_of(row.price, row.usage))
    add(db, [(before, after.amount - before.amount) for before, after in zip(held, real, strict=True)])
    db.execute(_INSERT, (*values(row), holds_json(real)))


def _correct(db: Connection, estimate: LedgerRow, actual: LedgerRow, assumed: Sequence[Hold]) -> None:
    real = charged(assumed, charge_of(actual.price, actual.usage))
    difference = [
        replace(after, amount=after.amount - before.amount) for before, after in zip(assumed, real, strict=True)
    ]
    add(db, [(hold, hold.amount) for hold in difference])
    db.execute(_INSERT, (*values(correction(estimate, actual, entry=1)), holds_json(difference)))


def beat(db: Connection, instance: str, now_s: float, lease_s: float, *, remembered_s: float) -> int:
    """Renew the lease, charge the requests of gateways whose lease is over, forget what no longer counts."""
    db.execute(
        "INSERT INTO instances VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET seen_s = excluded.seen_s", (instance, now_s)
    )
    orphans = db.execute(
        """SELECT body, holds FROM reservations WHERE instance NOT IN (SELECT id FROM instances WHERE seen_s >= ?)""",
        (now_s - lease_s,),
    ).fetchall()
    for body, _ in orphans:
        settle(db, estimated(read_reservation(body), now_s))
    db.execute("DELETE FROM instances WHERE seen_s < ?", (now_s - lease_s,))
    db.execute("DELETE FROM counters WHERE until_s > 0 AND until_s < ?", (now_s - lease_s,))
    db.execute("DELETE FROM idempotency WHERE at_s < ?", (now_s - remembered_s,))
    db.execute("DELETE FROM answers WHERE request_id NOT IN (SELECT request_id FROM idempotency)")
    return len(orphans)


def forget_instance(db: Connection, instance: str) -> None:
    db.execute("DELETE FROM instances WHERE id = ?", (instance,))


def rebuild(db: Connection) -> None:
    totals: defaultdict[tuple[str, int], int] = defaultdict(int)
    until: dict[tuple[str, int], float] = {}
    for table in ("ledger", "reservations"):
        for (text,) in db.execute(f"SELECT holds FROM {table}"):
            for hold in read_holds(text):
                totals[hold.counter, hold.slice] += hold.amount
                until[hold.counter, hold.slice] = hold.until_s
    db.execute("DELETE FROM counters")
    db.executemany(
        "INSERT INTO counters VALUES (?, ?, ?, ?)",
        [(counter, place, total, until[counter, place]) for (counter, place), total in totals.items()],
    )


def rows(db: Connection, since_s: float, until_s: float) -> list[LedgerRow]:
    found = db.execute(f"{_SELECT} WHERE ended_s >= ? AND ended_s < ? ORDER BY ended_s, entry", (since_s, until_s))
    return [from_values(each) for each in found]


def open_reservations(db: Connection) -> list[tuple[Reservation, tuple[Hold, ...]]]:
    found = db.execute("SELECT body, holds FROM reservations ORDER BY id")
    return [(read_reservation(body), read_holds(holds)) for body, holds in found]


def used(db: Connection, counters: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    if not counters:
        return ()
    asked = [part for pair in counters for part in pair]
    return tuple(db.execute(_sums(len(counters)), asked).fetchone())


def add(db: Connection, amounts: Sequence[tuple[Hold, int]]) -> None:
    """In one statement: each that the thread runs costs it a turn."""
    values = [part for hold, amount in amounts if amount for part in (hold.counter, hold.slice, amount, hold.until_s)]
    if values:
        db.execute(_added(len(values) // 4), values)


@cache
def _sums(count: int) -> str:
    return f"SELECT {', '.join([_SUM] * count)}"


@cache
def _added(count: int) -> str:
    return f"""INSERT INTO counters VALUES {", ".join(["(?, ?, ?, ?)"] * count)}
               ON CONFLICT (counter, slice) DO UPDATE SET used = used + excluded.used"""


def revision(db: Connection) -> int:
    return int(db.execute("SELECT value FROM revision").fetchone()[0])


def records(db: Connection) -> list[Record]:
    return [Record(*each) for each in db.execute("SELECT kind, id, body FROM records ORDER BY kind, id")]


def put_record(db: Connection, record: Record) -> None:
    db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?)", (record.kind, record.id, record.body))
    db.execute("UPDATE revision SET value = value + 1")


def remove_record(db: Connection, kind: str, id: str) -> bool:
    removed = db.execute("DELETE FROM records WHERE kind = ? AND id = ?", (kind, id)).rowcount
    db.execute("UPDATE revision SET value = value + 1")
    return removed > 0
