"""Budgets in the books: never overspent, free again once unused, settled once; the same for every store."""

from __future__ import annotations

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from books_rig import ANA, NOON_S, Clock, agree, limit, opening, row
from decodeloop.gateway.store import Refusal
from decodeloop.gateway.store.sqlite import SqliteBooks
from decodeloop.governance.quota import Unit, Window
from decodeloop.types import Usage
from open_books import HUNDRED, LASTING, LIMITS, Address, Books, books, grow, run


def test_a_budget_for_ten_admits_ten_of_many_at_once(path: Address) -> None:
    async def work(one: Books) -> None:
        got = await asyncio.gather(*[one.reserve(opening(f"r{i}", LIMITS, HUNDRED)) for i in range(20)])
        assert sum(each.refusal is None for each in got) == 10
        assert {each.refusal for each in got} == {None, Refusal.LIMIT}
        await agree(one, opening("x", LIMITS, HUNDRED).holds)

    run(work, books(path))


def test_gateways_share_a_budget(path: Address) -> None:
    async def work(*each: Books) -> None:
        got = await asyncio.gather(
            *[one.reserve(opening(f"{i}-{j}", LIMITS, HUNDRED)) for j in range(6) for i, one in enumerate(each)]
        )
        assert sum(answer.refusal is None for answer in got) == 10

    run(work, books(path), books(path, "two"), books(path, "three"))


def test_what_was_not_used_is_free_again(path: Address) -> None:
    async def work(one: Books) -> None:
        for place in range(30):  # of 100 reserved 20 are used: 30 fit one after another, though not at once
            id = f"r{place}"
            assert (await one.reserve(opening(id, LIMITS, HUNDRED))).refusal is None
            one.settle(row(id, Usage(prompt=15, completion=5)))
        holds = opening("x", LIMITS, HUNDRED).holds
        await agree(one, holds)
        assert max(await one.used([(hold.counter, hold.oldest) for hold in holds if hold.unit is Unit.TOKENS])) == 600

    run(work, books(path))


def test_a_request_settles_once(path: Address) -> None:
    async def work(one: Books) -> None:
        await one.reserve(opening("r", LIMITS, HUNDRED))
        for tokens in (5, 9):
            one.settle(row("r", Usage(prompt=15, completion=tokens)))
        (entry,) = await one.rows(0, 1e12)
        assert entry == row("r", Usage(prompt=15, completion=5))

    run(work, books(path))


def test_a_reservation_grows_as_far_as_the_budget(path: Address) -> None:
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


def test_counters_are_rebuilt_under_load_without_a_false_refusal(path: Address) -> None:
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


def test_who_asks_decides_which_counters_are_held() -> None:
    holds = opening("r", (limit(5, organization="other"), limit(5, organization="acme", user="*")), HUNDRED).holds
    assert [hold.counter for hold in holds] == [f"tokens-total-acme-*|acme/{ANA.user}//"]
