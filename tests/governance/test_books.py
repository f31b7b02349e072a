"""Books: never overspent, never lost, billed once; the same for every store."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import asyncpg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from books_rig import ANA, NOON_S, PRICE, Clock, agree, limit, opening, row
from decodeloop.gateway.store import Idempotency, Recalled, Refusal, Reserved, StoreUnavailable
from decodeloop.gateway.store.columns import ADDED, COLUMNS
from decodeloop.gateway.store.events import ToldEvent, open_events
from decodeloop.gateway.store.postgres import PostgresJournal
from decodeloop.gateway.store.shared import SharedBooks
from decodeloop.gateway.store.sqlite import SqliteBooks
from decodeloop.governance.ledger import Outcome
from decodeloop.governance.quota import Limit, Unit, Window
from decodeloop.governance.settings import IdempotencySettings
from decodeloop.types import Usage

LIMITS = (
    limit(1000),
    limit(10_000_000, Unit.MONEY, organization="acme", user="*"),
    limit(50, Unit.REQUESTS, Window.MINUTE, organization="acme"),
)
LASTING = LIMITS[:2]  # whose counters are never forgotten
STANDING = Clock()
HUNDRED = Usage(prompt=60, completion=40)


Books = SqliteBooks | SharedBooks
Path = str | tuple[str, str]


@pytest.fixture(params=["sqlite", "shared"])
def path(request: pytest.FixtureRequest, tmp_path: Any) -> Path:
    """Where the books are: a file, or a database and counters."""
    return str(tmp_path / "books.sqlite3") if request.param == "sqlite" else request.getfixturevalue("shared")


@pytest.fixture
def file(tmp_path: Any) -> str:
    return str(tmp_path / "books.sqlite3")


def books(path: Path, instance: str = "one", clock: Callable[[], float] = STANDING, **more: Any) -> Books:
    if isinstance(path, str):
        return SqliteBooks(path, instance=instance, clock=clock, **more)
    return SharedBooks(*path, instance=instance, clock=clock, **more)


def run(work: Callable[..., Any], *each: Books) -> Any:
    async def whole() -> Any:
        for one in each:
            await one.start()
        try:
            return await work(*each)
        finally:
            for one in each:
                await one.close()

    return asyncio.run(whole())


async def settled(one: Books) -> None:
    """Notes and settlements are recorded."""
    while isinstance(one, SharedBooks) and len(one._tasks) > 2:
        await asyncio.sleep(0.001)
    await one.flush()


async def grow(one: Books, id: str, limits: Sequence[Limit], bound: Usage) -> Reserved:
    larger = opening(id, limits, bound)
    return await one.extend(larger.reservation, larger.holds)


def test_a_budget_for_ten_admits_ten_of_many_at_once(path: Path) -> None:
    async def work(one: Books) -> None:
        got = await asyncio.gather(*[one.reserve(opening(f"r{i}", LIMITS, HUNDRED)) for i in range(20)])
        assert sum(each.refusal is None for each in got) == 10
        assert {each.refusal for each in got} == {None, Refusal.LIMIT}
        await agree(one, opening("x", LIMITS, HUNDRED).holds)

    run(work, books(path))


def test_gateways_share_a_budget(path: Path) -> None:
    async def work(*each: Books) -> None:
        got = await asyncio.gather(
            *[one.reserve(opening(f"{i}-{j}", LIMITS, HUNDRED)) for j in range(6) for i, one in enumerate(each)]
        )
        assert sum(answer.refusal is None for answer in got) == 10

    run(work, books(path), books(path, "two"), books(path, "three"))


def test_what_was_not_used_is_free_again(path: Path) -> None:
    async def work(one: Books) -> None:
        for place in range(30):  # of 100 reserved 20 are used: 30 fit one after another, though not at once
            id = f"r{place}"
            assert (await one.reserve(opening(id, LIMITS, HUNDRED))).refusal is None
            one.settle(row(id, Usage(prompt=15, completion=5)))
        holds = opening("x", LIMITS, HUNDRED).holds
        await agree(one, holds)
        assert max(await one.used([(hold.counter, hold.oldest) for hold in holds if hold.unit is Unit.TOKENS])) == 600

    run(work, books(path))


def test_a_request_settles_once(path: Path) -> None:
    async def work(one: Books) -> None:
        await one.reserve(opening("r", LIMITS, HUNDRED))
        for tokens in (5, 9):
            one.settle(row("r", Usage(prompt=15, completion=tokens)))
        (entry,) = await one.rows(0, 1e12)
        assert entry == row("r", Usage(prompt=15, completion=5))

    run(work, books(path))


@pytest.mark.parametrize("known", [None, Usage(prompt=15, completion=7)])
def test_a_gateway_that_died_is_charged_and_put_right_later(path: Path, known: Usage | None) -> None:
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


def test_a_gateway_taken_for_dead_goes_on_and_its_counters_stay_right(path: Path) -> None:
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


def test_a_reservation_grows_as_far_as_the_budget(path: Path) -> None:
    async def work(one: Books) -> None:
        await one.reserve(opening("r", LIMITS, HUNDRED))
        more = Usage(prompt=60, completion=900)
        assert (await grow(one, "r", LIMITS, more)).refusal is None
        most = Usage(prompt=60, completion=941)
        assert (await grow(one, "r", LIMITS, most)).refusal is Refusal.LIMIT
        ((reservation, holds),) = await one.open()
        assert reservation.bound == more
        await agree(one, holds)
        assert (await grow(one, "gone", LIMITS, more)).refusal is Refusal.LIMIT

    run(work, books(path))


def test_an_idempotency_key_is_billed_once(path: Path) -> None:
    key = Idempotency("acme", "k", b"body")

    async def work(one: Books) -> None:
        async def again(name: Idempotency = key) -> Refusal | None:
            return (await one.reserve(opening("second", LIMITS, HUNDRED, idempotency=name))).refusal

        first = opening("first", LIMITS, HUNDRED, idempotency=key)
        assert (await one.reserve(first)).refusal is None
        assert await again() is Refusal.IN_FLIGHT
        assert await again(Idempotency("acme", "k", b"other")) is Refusal.MISMATCH
        one.settle(row("first", HUNDRED))
        await settled(one)
        assert await again() is Refusal.USED
        assert await again(Idempotency("other", "k", b"body")) is None
        one.settle(row("second", Usage(), Outcome.FAILED))
        assert len(await one.rows(0, 1e12)) == 2

    run(work, books(path))


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


def test_clients_events_are_kept_once_and_the_newest(path: Path) -> None:
    def event(kind: str, id: str, at_s: float) -> ToldEvent:
        who = {"organization": "acme", "user_name": "ana", "agent": ""}
        return ToldEvent(at_s=at_s, told_s=NOON_S, **who, event=kind, request_id=id)

    async def work(one: Books) -> None:
        events = open_events(one)
        await events.start()
        await events.start()
        await one.reserve(opening("first", LASTING, HUNDRED))
        one.settle(row("first", HUNDRED))
        assert await events.known("acme", ["first", "second"]) == {"first"}
        assert await events.known("other", ["first"]) == frozenset()
        told = [event("shown", "first", 2.0), event("taken", "first", 3.0), event("shown", "first", 1.0)]
        await events.add(told, most=10)
        await events.add(told, most=10)
        assert list(await events.read(0.0, 9.0)) == told[:2]
        assert list(await events.read(0.0, 3.0)) == told[:1]
        await events.add([event("shown", id, 5.0) for id in "abc"], most=2)
        assert [each.request_id for each in await events.read(0.0, 9.0)] == ["b", "c"]

    run(work, books(path))


def test_an_answer_is_kept_under_the_key_of_its_request(path: Path) -> None:
    key, clock = Idempotency("acme/ana", "k", b"body", "acme"), Clock()

    async def work(one: Books, two: Books) -> None:
        assert await one.recall(key) == Recalled()
        await one.reserve(opening("first", LASTING, HUNDRED, idempotency=key))
        assert await two.recall(key) == Recalled(Refusal.IN_FLIGHT, "first")
        one.settle(row("first", HUNDRED))
        await settled(one)
        assert await two.recall(key) == Recalled(Refusal.IN_FLIGHT, "first"), "its answer is about to be kept"
        one.keep(key, "another", b"not its answer")
        one.keep(key, "first", b"answer")
        await settled(one)
        assert await two.recall(key) == Recalled(Refusal.USED, "first", b"answer")
        assert await two.recall(replace(key, digest=b"other")) == Recalled(Refusal.MISMATCH, "first")
        await one.reserve(opening("lost", LASTING, HUNDRED, idempotency=replace(key, key="j")))
        one.settle(row("lost", HUNDRED))
        await settled(one)
        clock.now_s += 10.0
        assert await one.recall(replace(key, key="j")) == Recalled(Refusal.USED, "lost"), "nobody kept it"
        clock.now_s += 86400.0
        await one._beat_once()
        assert await two.recall(key) == Recalled()

    run(work, books(path, clock=clock), books(path, "two", clock))


def test_kept_answers_take_an_organization_no_more_than_its_room(path: Path) -> None:
    clock, room = Clock(), IdempotencySettings(max_mb=1)
    half = b"x" * 400_000

    def named(organization: str, key: str) -> Idempotency:
        return Idempotency(organization, key, b"", organization)

    async def work(one: Books) -> None:
        for organization, key in (("acme", "a"), ("acme", "b"), ("other", "o"), ("acme", "c")):
            clock.now_s += 1.0
            id = organization + key
            await one.reserve(opening(id, LASTING, Usage(1, 0, 1), idempotency=named(organization, key)))
            one.settle(row(id, Usage(1, 0, 1)))
            await settled(one)
            one.keep(named(organization, key), id, half)
            await settled(one)
        kept = [(await one.recall(named("acme", key))).answer for key in "abc"]
        assert kept == [None, half, half], "the oldest went"
        assert (await one.recall(named("other", "o"))).answer == half

    run(work, books(path, clock=clock, idempotency=room))


def test_a_key_whose_request_failed_unbilled_may_be_tried_again(path: Path) -> None:
    key = Idempotency("acme", "k", b"body")

    async def work(one: Books) -> None:
        for id in ("first", "second"):
            assert (await one.reserve(opening(id, LIMITS, HUNDRED, idempotency=key))).refusal is None
            one.settle(row(id, Usage(), Outcome.FAILED))
            await settled(one)

    run(work, books(path))


def test_a_key_whose_gateway_died_is_free_once_its_estimate_is_taken_back(path: Path) -> None:
    clock, key = Clock(), Idempotency("acme", "k", b"body")
    holds = opening("first", LASTING, HUNDRED).holds

    async def work(dead: Books, alive: Books) -> None:
        await dead.reserve(opening("first", LASTING, HUNDRED, idempotency=key))
        assert await alive.recall(key) == Recalled(Refusal.IN_FLIGHT, "first")
        clock.now_s += 100.0
        await alive._beat_once()
        await settled(alive)
        recalled = await alive.recall(key)
        assert (recalled.refusal, recalled.answer) == (Refusal.IN_FLIGHT, None)
        assert recalled.estimate is not None
        assert recalled.estimate.usage == HUNDRED
        for _ in range(2):  # two repeats at once
            alive.settle(row("first", Usage(), Outcome.FAILED))
        await settled(alive)
        assert await alive.recall(key) == Recalled()
        assert (await alive.reserve(opening("second", LASTING, HUNDRED, idempotency=key))).refusal is None
        dead.settle(row("first", HUNDRED))  # it was only asleep
        dead.keep(key, "first", b"too late")
        await settled(dead)
        assert await alive.recall(key) == Recalled(Refusal.IN_FLIGHT, "second")
        alive.settle(row("second", Usage(prompt=10, completion=5)))
        await settled(alive)
        rows = await alive.rows(0, 1e12)
        assert sorted((each.request_id, each.entry) for each in rows) == [("first", 0), ("first", 1), ("second", 0)]
        assert sum(each.usage.prompt + each.usage.completion for each in rows) == 15
        await agree(alive, holds)

    run(work, books(path, "dead", clock=clock), books(path, "alive", clock=clock))


def test_counters_are_rebuilt_under_load_without_a_false_refusal(path: Path) -> None:
    """A key at 60 % of its cap, 16 requests at a time, which fit; the counters are rebuilt all along."""
    rounds, cap = (6, 10_000) if isinstance(path, str) else (2, 40_000)

    async def work(one: Books, two: Books) -> None:
        big = (limit(cap),)
        base = Usage(prompt=6 * cap // 10)
        await one.reserve(opening("base", big, base))
        one.settle(row("base", base))

        async def client(name: int) -> None:
            for place in range(rounds):
                id = f"{name}-{place}"
                assert (await one.reserve(opening(id, big, Usage(prompt=60, completion=140)))).refusal is None, id
                await asyncio.sleep(0)
                one.settle(row(id, Usage(prompt=5, completion=3)))

        async def rebuilding() -> None:
            while isinstance(one, SqliteBooks) and not done.is_set():
                await two.rebuild()
                await one._do(_exact)
            for _ in range(0 if isinstance(one, SqliteBooks) else 4):  # each sends what was just counted back to count
                await two.rebuild()
                await asyncio.sleep(0.05)

        done = asyncio.Event()
        watcher = asyncio.create_task(rebuilding())
        await asyncio.gather(*[client(name) for name in range(16)])
        done.set()
        await watcher
        await agree(one, opening("x", big, HUNDRED).holds)
        assert await one.used([(opening("x", big, HUNDRED).holds[0].counter, 0)]) == (base.prompt + 16 * rounds * 8,)

    run(work, books(path), books(path, "two"))


def _exact(connection: Any) -> None:
    """In one transaction: counter == ledger + open reservations."""
    (counter,) = connection.execute("SELECT sum(used) FROM counters").fetchone()
    (settled,) = connection.execute("SELECT sum(prompt_tokens + completion_tokens) FROM ledger").fetchone()
    (held,) = connection.execute("SELECT coalesce(sum(json_extract(holds, '$[0][4]')), 0) FROM reservations").fetchone()
    assert counter == settled + held


def test_a_rolling_window_never_holds_more_than_its_amount(file: str) -> None:
    clock = Clock()
    minute = (limit(1000, Unit.TOKENS, Window.MINUTE),)
    admitted: list[float] = []

    async def work(one: Books) -> None:
        for step in range(240):
            clock.now_s = NOON_S + step * 1.7
            id = f"r{step}"
            got = await one.reserve(opening(id, minute, HUNDRED, now_s=clock.now_s))
            if got.refusal is None:
                admitted.append(clock.now_s)
                one.settle(row(id, HUNDRED))

    run(work, books(file, clock=clock))
    for start in admitted:
        assert sum(start <= at < start + 60 for at in admitted) <= 10
    assert len(admitted) > 40, "it refills"


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["reserve", "settle", "extend", "die", "rebuild"]), st.integers(0, 5), st.integers(0, 300)
        ),
        max_size=40,
    )
)
def test_whatever_happens_counters_are_ledger_plus_reservations(history: list[tuple[str, int, int]]) -> None:
    clock = Clock()

    async def work(one: Books) -> None:
        two = books_of_a_dead_gateway(one, clock)
        holds = opening("x", LASTING, HUNDRED).holds
        names = {}
        for step, (what, who, amount) in enumerate(history):
            bound = Usage(prompt=amount, completion=amount)
            if what == "reserve":
                id = f"{who}-{step}"
                if (await one.reserve(opening(id, LASTING, bound))).refusal is None:
                    names[who] = id
            elif what == "settle" and who in names:
                one.settle(row(names[who], Usage(prompt=amount // 4, completion=amount // 4)))
            elif what == "extend" and who in names:
                await grow(one, names[who], LASTING, Usage(300, 0, 300))
            elif what == "die":
                await two(step)
            elif what == "rebuild":
                await one.rebuild()
            await agree(one, holds)

    run(work, books(":memory:", clock=clock))


def books_of_a_dead_gateway(one: Books, clock: Clock) -> Any:
    async def die(step: int) -> None:
        one._instance = f"reborn-{step}"
        clock.now_s += 100
        await one._beat_once()

    return die


def test_a_file_that_cannot_be_opened_is_unavailable(tmp_path: Any) -> None:
    async def work() -> None:
        one = books(str(tmp_path / "no" / "such" / "place"))
        with pytest.raises(StoreUnavailable, match="can't open"):
            await one.start()

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


def test_who_asks_decides_which_counters_are_held() -> None:
    holds = opening("r", (limit(5, organization="other"), limit(5, organization="acme", user="*")), HUNDRED).holds
    assert [hold.counter for hold in holds] == [f"tokens-total-acme-*|acme/{ANA.user}//"]


@pytest.mark.parametrize("error", [asyncpg.InternalClientError("state"), asyncpg.PostgresError("x"), TimeoutError()])
def test_whatever_a_dying_database_does_is_no_fault_of_the_request(error: Exception) -> None:
    async def work() -> None:
        with pytest.raises(StoreUnavailable, match="PostgreSQL"):
            async with PostgresJournal("postgresql://nowhere")._asked():
                raise error

    asyncio.run(work())
