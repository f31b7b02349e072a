"""Books that open, or say why not: on files and databases of older versions, and beside others that start."""

from __future__ import annotations

import asyncio
import sqlite3
from typing import Any

import asyncpg
import pytest

from books_rig import Clock, opening, row
from decodeloop.gateway.store import StoreUnavailable
from decodeloop.gateway.store.columns import ADDED, COLUMNS
from decodeloop.gateway.store.events import open_events
from decodeloop.gateway.store.shared import SharedBooks
from open_books import HUNDRED, LASTING, Books, books, run, settled


def test_a_ledger_of_an_older_version_goes_on(file: str) -> None:
    """It lacks columns that came since."""
    older = ", ".join(f"{name} {kind} NOT NULL" for name, kind, _ in COLUMNS if name not in ADDED)
    with sqlite3.connect(file) as db:
        db.execute(f"CREATE TABLE ledger ({older}, holds text NOT NULL, PRIMARY KEY (request_id, entry))")

    async def work(one: Books) -> None:
        await one.reserve(opening("first", LASTING, HUNDRED))
        one.settle(row("first", HUNDRED, losslessness="plain"))
        await settled(one)
        assert [each.losslessness for each in await one.rows(0, 1e12)] == ["plain"]

    run(work, books(file))
    run(work_again, books(file))


async def work_again(one: Books) -> None:
    assert len(await one.rows(0, 1e12)) == 1


def test_a_database_of_an_older_version_goes_on(shared: tuple[str, str]) -> None:
    older = ", ".join(f"{name} {kind} NOT NULL" for name, kind, _ in COLUMNS if name not in ADDED)

    async def make() -> None:
        database = await asyncpg.connect(shared[0])
        await database.execute(f"CREATE TABLE ledger ({older}, holds text NOT NULL, PRIMARY KEY (request_id, entry))")
        await database.close()

    async def work(one: Books) -> None:
        await one.reserve(opening("first", LASTING, HUNDRED))
        one.settle(row("first", HUNDRED, asked_model="it"))
        await settled(one)
        assert [each.asked_model for each in await one.rows(0, 1e12)] == ["it"]

    asyncio.run(make())
    run(work, books(shared))


def test_gateways_that_start_at_once_on_an_empty_database_all_start(shared: tuple[str, str]) -> None:
    """Tables of the events too: creating what another creates at that moment fails in PostgreSQL."""

    async def started(name: str, ready: asyncio.Barrier) -> None:
        one = SharedBooks(*shared, instance=name, clock=Clock())
        await ready.wait()
        await one.start()
        try:
            events = open_events(one)
            await ready.wait()
            await events.start()
        finally:
            await one.close()

    async def together() -> None:
        ready = asyncio.Barrier(8)
        await asyncio.gather(*(started(f"gateway-{n}", ready) for n in range(8)))

    asyncio.run(together())


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Any) -> None:
    async def work() -> None:
        one = books(str(tmp_path / "no" / "such" / "place"))
        with pytest.raises(StoreUnavailable, match="can't open"):
            await one.start()

    asyncio.run(work())
