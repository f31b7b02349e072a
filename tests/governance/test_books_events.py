"""What clients tell of answers, kept beside the books."""

from __future__ import annotations

from books_rig import NOON_S, opening, row
from decodeloop.gateway.store.events import ToldEvent, open_events
from open_books import HUNDRED, LASTING, Address, Books, books, run


def test_clients_events_are_kept_once_and_the_newest(path: Address) -> None:
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
