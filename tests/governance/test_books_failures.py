"""Books when a gateway dies or only sleeps, a disk is full, a database goes: nothing is lost or billed twice."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from books_rig import PRICE, Clock, agree, limit, opening, row
from decodeloop.gateway.store import StoreUnavailable
from decodeloop.gateway.store.postgres import PostgresJournal
from decodeloop.governance.ledger import Outcome
from decodeloop.types import Usage
from open_books import HUNDRED, LIMITS, Address, Books, books, run, settled


@pytest.mark.parametrize("known", [None, Usage(prompt=15, completion=7)])
def test_a_gateway_that_died_is_charged_and_put_right_later(path: Address, known: Usage | None) -> None:
    clock = Clock()

    async def work() -> None:
        dead, alive = books(path, "dead", clock), books(path, "alive", clock)
        await dead.start()
        await dead.reserve(opening("r", LIMITS, HUNDRED))
        if known is not None:
            dead.checkpoint([("r", known)])
        await settled(dead)
        clock.now_s += 10
        await alive.start()
        assert len(await alive.open()) == 1, "its lease isn't over: it may live"
        clock.now_s += 10
        await alive._beat_once()
        await settled(alive)
        (entry,) = await alive.rows(0, 1e12)
        assert (entry.outcome, entry.usage) == (Outcome.ESTIMATED, known or HUNDRED)
        holds = opening("x", LIMITS, HUNDRED).holds
        await agree(alive, holds)
        dead.settle(row("r", Usage(prompt=15, completion=9)))  # it was only asleep
        await settled(dead)
        both = await alive.rows(0, 1e12)
        assert [each.outcome for each in both] == [Outcome.ESTIMATED, Outcome.CORRECTION] or len(both) == 2
        assert sum(each.usage.completion for each in both) == 9
        assert sum(each.billed for each in both) == PRICE.of(Usage(prompt=15, completion=9))
        await agree(alive, holds)
        for one in (dead, alive):
            await one.close()

    asyncio.run(work())


def test_a_gateway_taken_for_dead_goes_on_and_its_counters_stay_right(path: Address) -> None:
    clock, total = Clock(), [limit(1000)]

    async def work() -> None:
        asleep, other = books(path, "asleep", clock), books(path, "other", clock)
        await asleep.start()
        await other.start()
        await asleep.reserve(opening("before", total, HUNDRED))
        clock.now_s += 100
        await other._beat_once()
        await settled(other)
        for id in ("during", "after"):  # before it notices, and once it has
            again = await asleep.reserve(opening(id, total, HUNDRED, now_s=clock.now_s))
            assert again.refusal is None
            await asleep._beat_once()
            await other._beat_once()
            for one in (asleep, other):
                await settled(one)
            await agree(other, opening("x", total, HUNDRED).holds)
        for id in ("before", "during", "after"):
            asleep.settle(row(id, Usage(prompt=15, completion=9)))
        for one in (asleep, other):
            await settled(one)
        await agree(other, opening("x", total, HUNDRED).holds)
        for one in (asleep, other):
            await one.close()

    asyncio.run(work())


def test_a_full_disk_refuses_and_recovers(file: str) -> None:
    async def work(one: Books) -> None:
        await one.reserve(opening("r", LIMITS, HUNDRED))
        pages = await one._do(lambda connection: connection.execute("PRAGMA page_count").fetchone()[0])
        await one._do(lambda connection: connection.execute(f"PRAGMA max_page_count = {pages}").fetchone())
        with pytest.raises(StoreUnavailable, match="full"):
            await asyncio.gather(*[one.reserve(opening(f"r{place}", (), HUNDRED)) for place in range(300)])
        one.settle(row("r", HUNDRED, model="m" * 100_000))
        await one.flush()
        assert await one.rows(0, 1e12) == []
        await one._do(lambda connection: connection.execute("PRAGMA max_page_count = 1000000").fetchone())
        await one._beat_once()
        assert [entry.request_id for entry in await one.rows(0, 1e12)] == ["r"], "nothing settled was lost"

    run(work, books(file))


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("state"), asyncpg.PostgresError("x"), TimeoutError()])
def test_whatever_a_dying_database_does_is_no_fault_of_the_request(error: Exception) -> None:
    async def work() -> None:
        with pytest.raises(StoreUnavailable, match="PostgreSQL"):
            async with PostgresJournal("postgresql://nowhere")._asked():
                raise error

    asyncio.run(work())
