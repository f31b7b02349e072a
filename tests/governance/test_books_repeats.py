"""Idempotency keys in the books: billed once, answers kept for a while, keys free again where nothing was billed."""

from __future__ import annotations

from dataclasses import replace

from books_rig import Clock, agree, opening, row
from decodeloop.gateway.store import Idempotency, Recalled, Refusal
from decodeloop.governance.ledger import Outcome
from decodeloop.governance.settings import IdempotencySettings
from decodeloop.types import Usage
from open_books import HUNDRED, LASTING, LIMITS, Address, Books, books, run, settled


def test_an_idempotency_key_is_billed_once(path: Address) -> None:
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


def test_an_answer_is_kept_under_the_key_of_its_request(path: Address) -> None:
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


def test_kept_answers_take_an_organization_no_more_than_its_room(path: Address) -> None:
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


def test_a_key_whose_request_failed_unbilled_may_be_tried_again(path: Address) -> None:
    key = Idempotency("acme", "k", b"body")

    async def work(one: Books) -> None:
        for id in ("first", "second"):
            assert (await one.reserve(opening(id, LIMITS, HUNDRED, idempotency=key))).refusal is None
            one.settle(row(id, Usage(), Outcome.FAILED))
            await settled(one)

    run(work, books(path))


def test_a_key_whose_gateway_died_is_free_once_its_estimate_is_taken_back(path: Address) -> None:
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
