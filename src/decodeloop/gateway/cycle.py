"""One request on a connection and its response: an ASGI server's receive and send."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from starlette.types import ASGIApp, Message, Scope

__all__ = ["Cycle", "Line"]

log = logging.getLogger(__name__)

STATUS_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}
NO_BODY = (204, 304)
DISCONNECT: Message = {"type": "http.disconnect"}


class Line(Protocol):
    """The connection, as far as a request sees it."""

    def write(self, data: bytes) -> None: ...

    def writable(self) -> asyncio.Event:
        """Set while the client takes what is written."""
        ...

    def take_more(self) -> None:
        """The body that came so far was read."""
        ...

    def answered(self, *, stays: bool) -> None:
        """The response is complete. stays: so is the connection kept."""
        ...

    def close(self) -> None: ...

    @property
    def common_headers(self) -> list[tuple[bytes, bytes]]: ...


class Cycle:
    """stays: whether the connection is kept. expects: whether the client waits to be told to send its body."""

    def __init__(self, line: Line, scope: Scope, *, stays: bool, expects: bool) -> None:
        self.scope, self.stays = scope, stays
        self._line, self._expects = line, expects
        self._writable = line.writable()
        self._parts: list[bytes] = []
        self._ended = self._told_end = False  # the request's body
        self._news: asyncio.Event | None = None
        self._alarm: Callable[[], None] | None = None
        self._head: bytes | None = None  # waits for the body's first piece
        self._left = 0  # bytes that the response still owes
        self._is_chunked = False
        self.gone = self.started = self.complete = False

    # what the connection tells it

    def body_came(self, data: bytes) -> int:
        """Returns how many bytes wait to be read."""
        if not self.complete:
            self._parts.append(data)
            self._tell()
        return sum(map(len, self._parts))

    def body_ended(self) -> None:
        self._ended = True
        self._tell()

    def left(self) -> None:
        """The client has closed."""
        self.gone = True
        self._tell()
        if self._alarm is not None and not self.complete:
            self._alarm()

    def _tell(self) -> None:
        if self._news is not None:
            self._news.set()

    # beside ASGI: what costs less than its messages

    def body_now(self) -> bytes | None:
        """The request's whole body, once, if it is here already and none of it was received."""
        if not self._ended or self._told_end:
            return None
        self._told_end = True
        return self._taken()

    def alarm(self, gone: Callable[[], None] | None) -> None:
        """Have `gone` called when the client leaves before the response's end."""
        self._alarm = gone

    def respond_now(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """The whole response; False: the client doesn't take it now, and nothing was written."""
        if self.gone or not self._writable.is_set():
            return False
        self._start(status, headers)
        self._write(body, more=False)
        return True

    def write_now(self, data: bytes) -> bool:
        """A part of the body that isn't its end; False: the client doesn't take it now, and nothing was written."""
        if self.gone or not self._writable.is_set():
            return False
        self._write(data, more=True)
        return True

    # ASGI

    async def receive(self) -> Message:
        if self._expects and not self.started:
            self._expects = False
            self._line.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        while not self.gone and not self.complete:
            if self._parts or (self._ended and not self._told_end):
                self._told_end = self._ended
                return {"type": "http.request", "body": self._taken(), "more_body": not self._ended}
            if self._news is None:
                self._news = asyncio.Event()
            self._news.clear()
            await self._news.wait()
        return DISCONNECT

    def _taken(self) -> bytes:
        parts, self._parts = self._parts, []
        self._line.take_more()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    async def send(self, message: Message) -> None:
        if not self._writable.is_set() and not self.gone:
            await self._writable.wait()
        if self.gone:
            return
        if message["type"] == "http.response.start":
            self._start(message["status"], message["headers"])
        else:
            self._write(message.get("body", b""), more=message.get("more_body", False))

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        assert not self.started, "a response starts once"
        self.started = True
        length, closes = None, not self.stays
        lines = [STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in (*self._line.common_headers, *headers):
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and b"close" in value.lower():
                self.stays = closes = False  # it says so itself
            lines.append(name + b": " + value + b"\r\n")
        if closes:
            lines.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in NO_BODY:
            length = 0
        elif length is None:
            self._is_chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or head.count(b"\r") != len(lines) or b"\0" in head:
            raise ValueError("a header with a line end in it")
        self._left = length or 0
        self._head = head + b"\r\n"

    def _write(self, data: bytes, *, more: bool) -> None:
        assert self.started, "a response starts with its head"
        assert not self.complete, "it ends once"
        if self._is_chunked:
            if data:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            if not more:
                data += b"0\r\n\r\n"
        elif self.scope["method"] == "HEAD":
            data = b""
        else:
            self._left -= len(data)
            assert self._left >= 0, "a body of the length that was told"
            assert more or not self._left, "a body of the length that was told"
        if self._head is not None:
            data, self._head = self._head + data, None
        if data:
            self._line.write(data)
        if not more:
            self.complete = True
            self._tell()
            self._line.answered(stays=self.stays)

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self.scope, self.receive, self.send)
        except BaseException:
            log.exception("a request failed")
            await self._give_up()
        else:
            if not self.complete and not self.gone:
                log.error("a request was left without an answer")
                await self._give_up()
        finally:
            self.scope.clear()  # it leads to what leads to it: so nothing is left for the garbage collector

    async def _give_up(self) -> None:
        if self.started:
            self._line.close()
            return
        self.stays = False
        await self.send({"type": "http.response.start", "status": 500, "headers": [(b"content-length", b"0")]})
        await self.send({"type": "http.response.body"})
