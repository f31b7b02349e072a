"""HTTP/1.1 as a load generator needs it: every piece of a response with the time at which it arrived.

On asyncio protocols and a C parser: some 20 us of CPU a piece, where a general client takes ten times that from the
engine beside it. Times are of `time.perf_counter`.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httptools

clock = time.perf_counter
IDLE_KEPT = 1024


class Lost(OSError):
    """The connection broke, could not be made, or nothing came in time."""


class Interrupted(asyncio.CancelledError):
    """An exchange that was cancelled; reply: what had come of it."""

    def __init__(self, reply: Reply) -> None:
        super().__init__()
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Address:
    """Where an API is: base URL and the headers of every request."""

    scheme: str
    host: str
    port: int
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, url: str, key: str | None = None) -> Address:
        """`http://host:port`, with or without /v1, which is added. Raises ValueError for other URLs."""
        found = urlsplit(url if "://" in url else f"http://{url}")
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ValueError(f"{url!r} is no http:// or https:// address")
        path = found.path.rstrip("/").removesuffix("/v1")
        port = found.port or (443 if found.scheme == "https" else 80)
        return cls(found.scheme, found.hostname, port, path, {"authorization": f"Bearer {key}"} if key else {})

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


@dataclass(slots=True)
class Reply:
    """pieces: (when, what) of the body, as it came."""

    sent_s: float
    status: int = 0
    pieces: list[tuple[float, bytes]] = field(default_factory=list)
    ended_s: float = 0.0

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, piece in self.pieces)


class Client:
    """Keeps connections alive between requests. One event loop's own."""

    def __init__(self, address: Address, *, timeout_s: float = 600.0) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._idle: list[_Connection] = []
        self._open: set[_Connection] = set()
        self._ssl = ssl.create_default_context() if address.scheme == "https" else None

    async def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] = {}) -> Reply:
        """One request, to the end of its response, whatever its status.

        Raises Lost. A kept connection that the server had closed meanwhile is replaced by a new one, once.
        Cancelling closes the connection, which tells the server to stop, and raises Interrupted.
        """
        message = self._message(method, path, body, headers)
        while True:
            connection, fresh = await self._connection()
            try:
                async with asyncio.timeout(self.timeout_s):
                    reply = await connection.exchange(message)
            except TimeoutError:
                connection.drop()
                raise Lost(f"nothing more came for {self.timeout_s:g} s") from None
            except Lost:
                if fresh or connection.answered:
                    raise
                continue
            except asyncio.CancelledError:
                connection.drop()
                raise Interrupted(connection.reply) from None
            if connection.reusable and len(self._idle) < IDLE_KEPT:
                self._idle.append(connection)
            else:
                connection.drop()
            return reply

    def close(self) -> None:
        for connection in list(self._open):
            connection.drop()

    async def _connection(self) -> tuple[_Connection, bool]:
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable:
                return connection, False
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(min(self.timeout_s, 30.0)):
                _, made = await loop.create_connection(
                    lambda: _Connection(self._open), address.host, address.port, ssl=self._ssl
                )
        except (OSError, TimeoutError) as error:
            raise Lost(f"no connection to {address.url}: {error or 'timed out'}") from error
        return made, True

    def _message(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [f"{method} {self.address.path}{path} HTTP/1.1", f"host: {self.address.host}:{self.address.port}"]
        if body or method == "POST":
            lines += ["content-type: application/json", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in {**self.address.headers, **headers}.items()]
        return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class _Connection(asyncio.Protocol):
    """One connection, one exchange at a time."""

    def __init__(self, opened: set[_Connection]) -> None:
        self._opened = opened
        self._transport: asyncio.Transport | None = None
        self.reply = Reply(0.0)
        self._done: asyncio.Future[Reply] | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._stamp = 0.0
        self._framed = False  # whether the response says where it ends
        self.reusable = True
        self.answered = False  # whether any byte of the present response has come

    async def exchange(self, message: bytes) -> Reply:
        self.answered = False
        if self._transport is None or self._transport.is_closing():
            raise Lost("the connection was closed")
        self._done = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self.reply = Reply(clock())
        self._transport.write(message)
        return await self._done

    def drop(self) -> None:
        self.reusable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._opened.add(self)

    def data_received(self, data: bytes) -> None:
        self._stamp, self.answered = clock(), True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._fail(Lost(f"that is no HTTP response: {error}"))
            self.drop()

    def connection_lost(self, error: Exception | None) -> None:
        self.reusable = False
        self._opened.discard(self)
        if self.reply.status and error is None and not self._framed:
            self.on_message_complete()  # a body without a length ends with its connection
        self._fail(Lost(f"the connection broke{f': {error}' if error else ''}"))

    def on_message_begin(self) -> None:
        self._framed = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self._framed = self._framed or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self.reply.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.reply.pieces.append((self._stamp, body))

    def on_message_complete(self) -> None:
        self.reusable = self.reusable and self._parser.should_keep_alive()
        self.reply.ended_s = self._stamp
        if self._done is not None and not self._done.done():
            self._done.set_result(self.reply)

    def _fail(self, error: Lost) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
