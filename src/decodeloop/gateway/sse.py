"""A response of server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from decodeloop.gateway.errors import error_object, internal_error, shutting_down
from decodeloop.gateway.exchange import ClientGone, Exchange
from decodeloop.gateway.wire.answer import event
from decodeloop.types import RequestRefused

__all__ = ["EventStream"]

log = logging.getLogger(__name__)

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)
HEARTBEAT = b": keep-alive\n\n"


class EventStream:
    """Opens with its first event or heartbeat; until then the request can still be refused with a status."""

    def __init__(self, exchange: Exchange, *, heartbeat_s: float) -> None:
        self._exchange, self._heartbeat_s = exchange, heartbeat_s
        self._loop = asyncio.get_running_loop()
        self._wrote_s = self._loop.time()
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None  # a comment that is being written
        self.opened = False
        self.said = False  # something other than comments
        self._ended = False

    async def write(self, events: bytes) -> None:
        self.said = True
        self._exchange.record(events)
        await self._say(events, more=True)

    def write_now(self, events: bytes) -> bool:
        """Without waiting; False: that can't be, and nothing was written."""
        if not self.said or self._is_writing or self._ended or not self._exchange.write_now(events):
            return False
        self._exchange.record(events)
        self._wrote_s = self._loop.time()
        return True

    async def end(self, events: bytes) -> None:
        self._exchange.record(events)
        await self._say(events, more=False)

    async def fail(self, refused: RequestRefused) -> None:
        """Tell of a failure after the start: an error event, and no [DONE]."""
        self._exchange.failed(refused)
        await self.end(event(error_object(refused)))

    async def carry(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which writes and ends the stream, while its client is there. What fails after the start is told
        in the stream; before, it is raised.

        Raises:
            ClientGone: the client left, and the work was cancelled.
        """
        exchange = self._exchange
        try:
            await exchange.while_there(self._beating(work))
        except RequestRefused as refused:
            if not self.opened:
                raise
            log.warning("request %s in mid-stream: %d %s", exchange.request_id, refused.status, refused.message)
            await self.fail(refused)
        except ClientGone:
            raise
        except asyncio.CancelledError:
            if self.opened:
                await self.fail(shutting_down())
            raise
        except Exception:
            if not self.opened:
                raise
            log.exception("request %s failed in mid-stream", exchange.request_id)
            await self.fail(internal_error(exchange.request_id))

    async def _beating(self, work: Coroutine[Any, Any, None]) -> None:
        """With a comment whenever nothing else was sent for `heartbeat_s`."""
        self._timer = self._loop.call_later(self._heartbeat_s, self._look)
        try:
            await work
        finally:
            self._timer.cancel()
            if self._beat is not None:
                self._beat.cancel()

    def _look(self) -> None:
        """One timer a stream: it looks when it is due, and is set anew."""
        left_s = self._wrote_s + self._heartbeat_s - self._loop.time()
        if left_s <= 0 and not self._is_writing and self._beat is None:
            self._beat = self._loop.create_task(self._write(HEARTBEAT, more=True))
            self._beat.add_done_callback(self._beaten)
        self._timer = self._loop.call_later(left_s if left_s > 0 else self._heartbeat_s, self._look)

    def _beaten(self, beat: asyncio.Task[None]) -> None:
        self._beat = None
        if not beat.cancelled() and beat.exception() is not None:
            log.warning("request %s: no heartbeat: %r", self._exchange.request_id, beat.exception())

    async def _say(self, events: bytes, *, more: bool) -> None:
        """After a comment that is under way: comments stay between events."""
        if self._beat is not None:
            await asyncio.wait([self._beat])
        await self._write(events, more=more)

    async def _write(self, events: bytes, *, more: bool) -> None:
        if self._ended:
            return
        self._ended, self._is_writing = not more, True
        try:
            if not self.opened:
                self.opened = True
                await self._exchange.start(200, HEADERS)
            await self._exchange.write(events, more=more)
        finally:
            self._is_writing = False
        self._wrote_s = self._loop.time()
