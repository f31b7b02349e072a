"""Work that is done together: whatever has come while the last batch was done is the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

__all__ = ["Batches"]

T = TypeVar("T")
R = TypeVar("R")

MOST_TOGETHER = 256


class Batches(Generic[T, R]):
    """work: one result an item; where it raises, all its items' submitters are told."""

    def __init__(self, work: Callable[[Sequence[T]], Awaitable[Sequence[R]]]) -> None:
        self._work = work
        self._items: list[tuple[T, asyncio.Future[R]]] = []
        self._come = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._working())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def submit(self, item: T) -> asyncio.Future[R]:
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._items.append((item, done))
        self._come.set()
        return done

    async def _working(self) -> None:
        while True:
            await self._come.wait()
            batch, self._items = self._items[:MOST_TOGETHER], self._items[MOST_TOGETHER:]
            if not self._items:
                self._come.clear()
            try:
                results = await self._work([item for item, _ in batch])
            except Exception as error:
                for _, done in batch:
                    if not done.done():
                        done.set_exception(error)
                continue
            for (_, done), result in zip(batch, results, strict=True):
                if not done.done():
                    done.set_result(result)
