"""Books of either kind, and limits that they keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from books_rig import Clock, limit, opening
from decodeloop.gateway.store import Reserved
from decodeloop.gateway.store.shared import SharedBooks
from decodeloop.gateway.store.sqlite import SqliteBooks
from decodeloop.governance.quota import Limit, Unit, Window
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
Address = str | tuple[str, str]  # a file, or a database and counters


def books(address: Address, instance: str = "one", clock: Callable[[], float] = STANDING, **more: Any) -> Books:
    if isinstance(address, str):
        return SqliteBooks(address, instance=instance, clock=clock, **more)
    return SharedBooks(*address, instance=instance, clock=clock, **more)


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
