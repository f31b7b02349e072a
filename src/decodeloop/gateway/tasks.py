"""Work that ends with its watchers, and iterators run side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from typing import Any

from decodeloop.gateway.upstreams import Upstream
from decodeloop.types import Chunk, Request, RequestRefused

__all__ = ["TimeLimit", "answer_chunks", "watched"]


async def watched(work: Coroutine[Any, Any, None], *watchers: Coroutine[Any, Any, None]) -> None:
    """Run `work` to its end. A watcher that raises first cancels it, and its exception is raised instead.

    When this returns or raises, nothing of them runs any more.
    """
    own = asyncio.current_task()
    assert own is not None, "watched() runs in a task"
    alarms: list[BaseException] = []

    def ended(watcher: asyncio.Task[None]) -> None:
        alarm = None if watcher.cancelled() else watcher.exception()
        if alarm is not None and not over:
            alarms.append(alarm)
            own.cancel()

    over = False
    tasks = [asyncio.create_task(coroutine) for coroutine in watchers]
    for task in tasks:
        task.add_done_callback(ended)
    try:
        await work
    except asyncio.CancelledError:
        if not alarms or own.uncancel() > 0:
            raise  # someone else's wish
        raise alarms.pop() from None
    finally:
        over = True
        for task in tasks:
            task.cancel()
        await _all_ended(tasks, own, alarms)


async def _all_ended(tasks: Sequence[asyncio.Task[None]], own: asyncio.Task[Any], alarms: list[BaseException]) -> None:
    """alarms: one that came just as the work ended changes nothing, but its cancellation is under way."""
    ended = asyncio.gather(*tasks, return_exceptions=True)
    try:
        await ended
    except asyncio.CancelledError:
        if not alarms or own.uncancel() > 0:
            raise
        await asyncio.gather(*tasks, return_exceptions=True)


class TimeLimit:
    """Raises RequestRefused with 504 when the answer made inside takes longer."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._is_late = False

    def __enter__(self) -> None:
        own = asyncio.current_task()
        assert own is not None, "only a task has a limit"
        self._own = own
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._late)

    def _late(self) -> None:
        self._is_late = True
        self._own.cancel()

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        self._timer.cancel()
        if self._is_late and self._own.uncancel() == 0 and kind is asyncio.CancelledError:
            raise RequestRefused(
                f"the answer was not complete after {self._limit_s:g} s", status=504, code="timeout"
            ) from None


async def answer_chunks(upstream: Upstream, requests: Sequence[Request]) -> AsyncGenerator[Chunk, None]:
    """All chunks of the requests' answers, indexed through (prompt times n).

    Upstreams are advanced only as this is: never more than one chunk a request waits here.
    """
    if len(requests) == 1:
        async with aclosing(upstream.stream(requests[0])) as stream:
            async for chunk in stream:
                yield chunk
        return
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(aclosing(upstream.stream(request))) for request in requests]
        pending: dict[asyncio.Task[Chunk | None], int] = {}
        stack.push_async_callback(_cancel, pending)
        pending.update({asyncio.create_task(_next(stream)): place for place, stream in enumerate(streams)})
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                place = pending.pop(task)
                arrived = task.result()
                if arrived is not None:
                    yield replace(arrived, index=place * requests[place].n + arrived.index)
                    pending[asyncio.create_task(_next(streams[place]))] = place


async def _next(stream: AsyncGenerator[Chunk, None]) -> Chunk | None:
    return await anext(stream, None)


async def _cancel(pending: dict[asyncio.Task[Chunk | None], int]) -> None:
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
