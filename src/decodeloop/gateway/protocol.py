"""HTTP/1.1 on a client's connection, within bounds: on heads, and on clients that stop reading. llhttp parses.

uvicorn owns the process's life and asks for protocols; its own takes three times the processor time of this one, and
bounds neither heads nor slow readers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from starlette.types import Scope

from decodeloop.gateway.client import CLIENT
from decodeloop.gateway.cycle import STATUS_LINES, Cycle
from decodeloop.gateway.errors import error_body
from decodeloop.gateway.settings import Limits
from decodeloop.types import RequestRefused

__all__ = ["BoundedHttp"]

UNREAD_BODY_BYTES = 2**16  # of a request; more stays in the socket
ASGI = {"version": "3.0", "spec_version": "2.3"}


class BoundedHttp(asyncio.Protocol):
    """A head that is too long or too slow, and what is no HTTP at all, get an error in the shape of all others.

    Requests that are sent ahead wait until the one before them is answered.
    """

    def __init__(self, limits: Limits, *, config: Any, server_state: Any, **uvicorn: Any) -> None:
        self._limits, self._app, self._server = limits, config.loaded_app, server_state
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # it is ignored, see on_message_begin
        self._transport: Any = None
        self._peer: tuple[str, int] | None = None
        self._host: tuple[str, int] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._answering: Cycle | None = None
        self._arriving: Cycle | None = None  # whose body is being read
        self._ahead: deque[Cycle] = deque()
        self._is_last = False  # what comes after this request is not read
        self._reads = True
        self._in_head, self._head_bytes = True, 0
        self._url, self._headers = b"", list[tuple[bytes, bytes]]()
        self._expects = False
        self._idle_since_s = 0.0
        self._head_timer: asyncio.TimerHandle | None = None
        self._idle_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    # what the event loop tells it

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._peer, self._host = _address(transport, "peername"), _address(transport, "sockname")
        self._server.connections.add(self)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        for timer in (self._head_timer, self._idle_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._ahead.clear()
        if self._answering is not None:
            self._answering.left()
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        if self._is_last and self._arriving is None:
            return
        if self._in_head:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:  # to nothing that is spoken here: the request is answered as it is
            pass
        except httptools.HttpParserError:
            if not self._is_last or self._arriving is not None:
                self._refuse_head(400, "Invalid HTTP request received.")
            return
        if self._in_head and not self._is_last:
            if self._head_bytes > self._limits.max_header_bytes:
                self._refuse_head(431, self._too_large())
            else:
                self._expect_head()

    def pause_writing(self) -> None:
        self._writable.clear()
        self._stall_timer = self._loop.call_later(self._limits.stall_timeout_s, self._transport.abort)

    def resume_writing(self) -> None:
        self._writable.set()
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def shutdown(self) -> None:
        """The server ends: after the running answer, if there is one."""
        if self._answering is None:
            self._transport.close()
        else:
            self._answering.stays = False

    # what the parser finds

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        self._url, self._headers, self._expects = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self._expects = True
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        if len(self._url) + sum([len(name) + len(value) for name, value in self._headers]) > (
            self._limits.max_header_bytes
        ):
            self._refuse_head(431, self._too_large())
            self._is_last = True
        if self._is_last:
            self._arriving = None
            return
        version = self._parser.get_http_version()
        stays = version != "1.0" and self._parser.should_keep_alive()
        self._is_last = not stays
        scope = self._scope(version)
        self._arriving = cycle = scope[CLIENT] = Cycle(self, scope, stays=stays, expects=self._expects)
        if self._answering is None:
            self._answer(cycle)
        else:
            self._ahead.append(cycle)
            self._pause_reading()

    def on_body(self, body: bytes) -> None:
        if self._arriving is not None and self._arriving.body_came(body) > UNREAD_BODY_BYTES:
            self._pause_reading()

    def on_message_complete(self) -> None:
        if self._arriving is not None:
            self._arriving.body_ended()
            self._arriving = None

    # what a request asks of it

    @property
    def common_headers(self) -> list[tuple[bytes, bytes]]:
        headers: list[tuple[bytes, bytes]] = self._server.default_headers
        return headers

    def writable(self) -> asyncio.Event:
        return self._writable

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    def take_more(self) -> None:
        if not self._reads and not self._ahead:
            self._reads = True
            self._transport.resume_reading()

    def close(self) -> None:
        self._transport.close()

    def answered(self, *, stays: bool) -> None:
        self._server.total_requests += 1
        self._answering = None
        if not stays:
            self._is_last = True
            self._transport.close()
        elif self._ahead:
            self._answer(self._ahead.popleft())
            self.take_more()
        else:
            self.take_more()
            self._idle_since_s = self._loop.time()
            if self._idle_timer is None:
                self._idle_timer = self._loop.call_later(self._limits.keep_alive_s, self._is_idle)

    def _answer(self, cycle: Cycle) -> None:
        self._answering = cycle
        self._server.tasks.add(self._loop.create_task(self._run(cycle)))

    async def _run(self, cycle: Cycle) -> None:
        try:
            await cycle.run(self._app)
        finally:
            self._server.tasks.discard(asyncio.current_task())  # as a callback it would cost another turn of the loop

    def _pause_reading(self) -> None:
        if self._reads:
            self._reads = False
            self._transport.pause_reading()

    def _scope(self, version: str) -> Scope:
        url = self._url
        if url[:1] == b"/" and url[1:2] != b"/" and not (b"?" in url or b"%" in url or b"#" in url):
            path, raw_path, query = url.decode("ascii"), url, b""
        else:
            parsed = httptools.parse_url(url)
            raw_path, query = parsed.path, parsed.query or b""
            path = unquote(raw_path.decode("ascii"))
        return {
            "type": "http",
            "asgi": ASGI,
            "http_version": version,
            "server": self._host,
            "client": self._peer,
            "scheme": "http",
            "root_path": "",
            "method": self._parser.get_method().decode("ascii"),
            "path": path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self._headers,
        }

    def _is_idle(self) -> None:
        """One timer for many requests: it looks when it is due, and is set anew if that was too early."""
        self._idle_timer = None
        if self._answering is not None or self._in_head:  # the answer's end sets it again; a head has its own
            return
        left_s = self._idle_since_s + self._limits.keep_alive_s - self._loop.time()
        if left_s > 0:
            self._idle_timer = self._loop.call_later(left_s, self._is_idle)
        else:
            self._transport.close()

    def _expect_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self._loop.call_later(self._limits.header_timeout_s, self._head_late)

    def _head_late(self) -> None:
        self._head_timer = None
        self._refuse_head(408, "the request's head did not arrive in time")

    def _too_large(self) -> str:
        return f"the request's head is larger than {self._limits.max_header_bytes} bytes"

    def _refuse_head(self, status: int, message: str) -> None:
        if self._transport.is_closing():
            return
        if self._answering is not None and self._answering.started:
            self._transport.close()  # an answer to an earlier request is on the wire: nothing may be written into it
            return
        body = error_body(RequestRefused(message, status=status))
        head = b"content-type: application/json\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body)
        self._transport.write(STATUS_LINES[HTTPStatus(status)] + head + body)
        self._transport.close()


def _address(transport: asyncio.BaseTransport, which: str) -> tuple[str, int] | None:
    address = transport.get_extra_info(which)
    return (str(address[0]), int(address[1])) if isinstance(address, tuple) else None
