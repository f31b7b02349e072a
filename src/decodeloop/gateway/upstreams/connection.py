"""One connection to an HTTP/1.1 server: a request at a time, its answer as it comes. llhttp parses, by httptools."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import httptools

__all__ = ["Broken", "Connection", "NoRoom", "Take"]

HIGH_WATER_BYTES = 2**18  # of an answer that nobody reads; more stays in the socket
MAX_HEAD_BYTES = 2**16


Take = Callable[[bytes], Coroutine[Any, Any, bool] | None]


class Broken(Exception):
    """No answer, or no end of one: the server can't be reached, is silent, closed, or speaks something else."""


class NoRoom(Broken):
    """This process has no file descriptor left: no fault of the server's."""


class Connection(asyncio.Protocol):
    """silence_s: the longest wait for a byte of an answer. lost: told when it is closed, from whichever side.

    status, headers: of the answer that has begun; names in lower case, the last of several.
    """

    def __init__(self, silence_s: float, lost: Callable[[Connection], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self.idle_since_s = 0.0
        self.status = 0
        self.headers: dict[bytes, bytes] = {}
        self._silence_s, self._lost = silence_s, lost
        self._transport: Any = None
        self._parser = httptools.HttpResponseParser(self)
        self._head_ended = self._paused = self._closed = False
        self._complete, self._stays = True, False
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._size = 0
        self._waiter: asyncio.Future[None] | None = None
        self._take: Take | None = None
        self._later: Coroutine[Any, Any, bool] | None = None  # what it gave back
        self._raised: Exception | None = None
        self._broken: Broken | None = None
        self._heard_s = 0.0
        self._silence: asyncio.TimerHandle | None = None

    async def ask(self, request: bytes) -> None:
        """Returns when the answer's head has come. Raises Broken."""
        self._head_ended = self._complete = False
        self._head_bytes = 0
        self.headers = {}
        self._heard_s = self.loop.time()
        if self._silence is None:
            self._silence = self.loop.call_later(self._silence_s, self._look)
        self._transport.write(request)
        while not self._head_ended:
            await self._more()

    async def piece(self) -> bytes:
        """What has come of the body since the last one; b"" at its end. Raises Broken."""
        while not self._parts:
            if self._complete:
                return b""
            await self._more()
        parts = self._parts
        self._parts, self._size = [], 0
        if self._paused:
            self._paused = False
            self._heard_s = self.loop.time()
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def each(self, take: Take) -> None:
        """Give the body to `take` as it comes, in the event loop's own call: no task has to be woken for a piece.

        Where `take` gives a coroutine back, the rest waits for that; where this returns True, the rest is left. Raises
        Broken, and what `take` raises.
        """
        while True:
            while self._parts:
                later = take(await self.piece())
                if later is not None and await later:
                    return
            if self._complete:
                return
            self._take = take
            try:
                await self._more()
            except BaseException:
                if self._later is not None:
                    self._later.close()
                raise
            finally:
                self._take = None
                later, self._later = self._later, None
            if self._raised is not None:
                raised, self._raised = self._raised, None
                raise raised
            if later is not None and await later:
                return

    def _hand_over(self, take: Take) -> None:
        parts = self._parts
        self._parts, self._size = [], 0
        try:
            self._later = take(parts[0] if len(parts) == 1 else b"".join(parts))
        except Exception as error:
            self._raised = error
        if self._later is not None or self._raised is not None:
            self._take = None
            self._wake()

    @property
    def was_closed(self) -> bool:
        """By the server, before a byte of an answer came."""
        return self._closed and not self._head_bytes

    def is_reusable(self) -> bool:
        return self._complete and not self._parts and self._broken is None and self._stays

    def abort(self) -> None:
        self._transport.abort()

    async def _more(self) -> None:
        if self._broken is not None:
            raise self._broken
        self._waiter = self.loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break(self, why: str) -> None:
        if self._broken is None:
            self._broken = Broken(why)
        self._wake()

    def _look(self) -> None:
        """One timer for many answers: it looks when it is due, and is set anew if that was too early."""
        self._silence = None
        if self._complete or self._broken is not None:
            return
        left_s = self._silence_s if self._paused else self._heard_s + self._silence_s - self.loop.time()
        if left_s > 0:
            self._silence = self.loop.call_later(left_s, self._look)
        else:
            self._break("TimeoutError")
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._heard_s = self.loop.time()
        try:
            if self._complete:
                raise httptools.HttpParserError("nobody asked")
            if not self._head_ended:
                self._head_bytes += len(data)
            self._parser.feed_data(data)
            if not self._head_ended and self._head_bytes > MAX_HEAD_BYTES:
                raise httptools.HttpParserError("no end of a head")
        except httptools.HttpParserError as error:
            self._break(type(error).__name__)
            self._transport.abort()
            return
        if self._size > HIGH_WATER_BYTES and not self._paused and not self._complete:
            self._paused = True
            self._transport.pause_reading()
        if self._take is not None and self._parts:
            self._hand_over(self._take)
        if self._head_ended and (self._take is None or self._complete):
            self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._silence is not None:
            self._silence.cancel()
        if exc is None and self._head_ended and self._broken is None and self._ends_with_connection():
            self._complete = True
        self._closed = self._broken is None
        self._break("ServerDisconnected" if exc is None else type(exc).__name__)
        self._lost(self)

    def _ends_with_connection(self) -> bool:
        chunked = b"chunked" in self.headers.get(b"transfer-encoding", b"").lower()
        return not chunked and b"content-length" not in self.headers

    # what the parser finds

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # the answer is still being worked on
            self.headers = {}
            return
        self.status, self._head_ended, self._stays = status, True, self._parser.should_keep_alive()

    def on_body(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)

    def on_message_complete(self) -> None:
        self._complete = self._head_ended
