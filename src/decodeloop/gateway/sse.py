"""A response of server-sent events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from typing import Any, NoReturn

from decodeloop.gateway.errors import error_object, internal_error, shutting_down
from decodeloop.gateway.exchange import ClientGone, Exchange
from decodeloop.gateway.tasks import watched
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
        self._turn = asyncio.Lock()  # one writer at a time: comments stay between events
        self._wrote_s = time.monotonic()
        self.opened = False
        self.said = False  # something other than comments
        self._ended = False

    async def write(self, events: bytes) -> None:
        self.said = True
        self._exchange.record(events)
        await self._write(events, more=True)

    async def end(self, events: bytes) -> None:
        self._exchange.record(events)
        await self._write(events, more=False)

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
            await watched(work, exchange.disconnected(), self.beat())
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

    async def beat(self) -> NoReturn:
        """Send a comment whenever nothing else was sent for `heartbeat_s`."""
        while True:
            due_s = self._wrote_s + self._heartbeat_s - time.monotonic()
            if due_s > 0:
                await asyncio.sleep(due_s)
            else:
                await self._write(HEARTBEAT, more=True)

    async def _write(self, events: bytes, *, more: bool) -> None:
        async with self._turn:
            if self._ended:
                return
            self._ended = not more
            if not self.opened:
                self.opened = True
                await self._exchange.start(200, HEADERS)
            await self._exchange.write(events, more=more)
            self._wrote_s = time.monotonic()
