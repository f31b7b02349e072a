"""What clients tell of answers: whether a suggestion was taken, when a task ended. In the books' database."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol

from decodeloop.gateway.store.sqlite import SqliteBooks

if TYPE_CHECKING:
    from decodeloop.gateway.store.shared import SharedBooks

__all__ = ["EventRecords", "PostgresEvents", "SqliteEvents", "ToldEvent", "open_events"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldEvent:
    """at_s: when it happened; told_s: when it was told; Unix seconds. request_id or session_id: what it is about."""

    at_s: float
    told_s: float
    organization: str
    user_name: str
    agent: str
    event: str
    request_id: str = ""
    session_id: str = ""
    arm: str = ""  # as its client says; "": the pool that answered


NAMES = tuple(each.name for each in fields(ToldEvent))
_TABLE = """CREATE TABLE IF NOT EXISTS client_events (id {serial}, at_s double precision NOT NULL,
    told_s double precision NOT NULL, organization text NOT NULL, user_name text NOT NULL, agent text NOT NULL,
    event text NOT NULL, request_id text NOT NULL, session_id text NOT NULL, arm text NOT NULL,
    UNIQUE (organization, event, request_id, session_id))"""
_OLD = "DELETE FROM client_events WHERE id <= (SELECT max(id) FROM client_events) - {most}"
_READ = f"SELECT {', '.join(NAMES)} FROM client_events WHERE at_s >= {{since}} AND at_s < {{until}} ORDER BY at_s, id"


class EventRecords(Protocol):
    """most: of all events, the newest."""

    async def start(self) -> None: ...

    async def add(self, events: Sequence[ToldEvent], *, most: int) -> None:
        """One that was told before is not entered again. Raises StoreUnavailable."""
        ...

    async def known(self, organization: str, request_ids: Sequence[str]) -> frozenset[str]:
        """Those of them that are settled requests of the organization."""
        ...

    async def read(self, since_s: float, until_s: float) -> Sequence[ToldEvent]: ...


class SqliteEvents:
    def __init__(self, books: SqliteBooks) -> None:
        self._books = books

    async def start(self) -> None:
        await self._books.do(lambda db: db.execute(_TABLE.format(serial="integer PRIMARY KEY AUTOINCREMENT")))

    async def add(self, events: Sequence[ToldEvent], *, most: int) -> None:
        marks = ", ".join("?" * len(NAMES))

        def step(db: sqlite3.Connection) -> None:
            insert = f"INSERT OR IGNORE INTO client_events ({', '.join(NAMES)}) VALUES ({marks})"
            db.executemany(insert, [astuple(each) for each in events])
            db.execute(_OLD.format(most="?"), (most,))

        await self._books.do(step)

    async def known(self, organization: str, request_ids: Sequence[str]) -> frozenset[str]:
        marks = ", ".join("?" * len(request_ids))
        query = f"SELECT request_id FROM ledger WHERE request_id IN ({marks}) AND organization = ?"
        return await self._books.do(
            lambda db: frozenset(id for (id,) in db.execute(query, (*request_ids, organization)))
        )

    async def read(self, since_s: float, until_s: float) -> Sequence[ToldEvent]:
        query = _READ.format(since="?", until="?")
        return await self._books.do(lambda db: [_event(row) for row in db.execute(query, (since_s, until_s))])


class PostgresEvents:
    def __init__(self, books: SharedBooks) -> None:
        self._books = books

    async def start(self) -> None:
        await self._books.journal.define(_TABLE.format(serial="bigserial PRIMARY KEY"))

    async def add(self, events: Sequence[ToldEvent], *, most: int) -> None:
        marks = ", ".join(f"${place}" for place in range(1, len(NAMES) + 1))
        insert = f"INSERT INTO client_events ({', '.join(NAMES)}) VALUES ({marks}) ON CONFLICT DO NOTHING"
        async with self._books.journal.transaction() as db:
            await db.executemany(insert, [astuple(each) for each in events])
            await db.execute(_OLD.format(most="$1"), most)

    async def known(self, organization: str, request_ids: Sequence[str]) -> frozenset[str]:
        await self._books.settled()
        async with self._books.journal.transaction() as db:
            found = await db.fetch(
                "SELECT request_id FROM ledger WHERE request_id = ANY($1) AND organization = $2",
                list(request_ids),
                organization,
            )
        return frozenset(id for (id,) in found)

    async def read(self, since_s: float, until_s: float) -> Sequence[ToldEvent]:
        async with self._books.journal.transaction() as db:
            return [_event(row) for row in await db.fetch(_READ.format(since="$1", until="$2"), since_s, until_s)]


def open_events(books: Any) -> EventRecords:
    return SqliteEvents(books) if isinstance(books, SqliteBooks) else PostgresEvents(books)


def _event(row: Any) -> ToldEvent:
    return ToldEvent(**dict(zip(NAMES, row, strict=True)))
