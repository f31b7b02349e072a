"""A client of one HTTP/1.1 server that keeps its connections.

A library's takes several times its processor time, for redirects, cookies, proxies and compression, none of which may
happen between a gateway and its servers.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

from decodeloop.gateway.upstreams.connection import Broken, Connection, NoRoom, Take

__all__ = ["Answer", "Broken", "HttpClient", "NoRoom", "Take"]


class HttpClient:
    """url: the server's, with a path that all others are below. headers: of every request.

    connect_s: the longest wait for a connection; silence_s: for a byte of an answer. Connections unused for `idle_s`
    are closed. authorities: a file of the certificates that an https server's own is checked against; None: the
    system's.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        connect_s: float,
        silence_s: float,
        idle_s: float = 30.0,
        authorities: str | None = None,
    ) -> None:
        """Raises ValueError for a URL without a host, for headers with line ends, and for a file without
        certificates; OSError where that can't be read."""
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{url!r} names no host")
        is_https = parts.scheme == "https"
        self._host, self._port = parts.hostname, parts.port or (443 if is_https else 80)
        self._ssl = _checking(authorities) if is_https else None
        self._path = parts.path.rstrip("/")
        self._connect_s, self._silence_s, self._idle_s = connect_s, silence_s, idle_s
        self._common = _lines({"host": parts.netloc.rpartition("@")[2], "accept-encoding": "identity", **headers})
        self._idle: deque[Connection] = deque()  # the longest unused first
        self._busy: set[Connection] = set()
        self._sweeper: asyncio.TimerHandle | None = None

    async def close(self) -> None:
        """Running answers break off."""
        if self._sweeper is not None:
            self._sweeper.cancel()
        for each in (*self._idle, *self._busy):
            each.abort()
        await asyncio.sleep(0)  # in which they are

    async def get(self, path: str) -> Answer:
        return await self._ask(b"GET %b HTTP/1.1\r\n%b\r\n" % (self._target(path), self._common))

    def post(self, path: str, body: bytes, headers: Mapping[str, str] = {}) -> Coroutine[Any, Any, Answer]:
        """Send JSON. Returns when the answer has begun: it must be closed.

        Raises Broken.
        """
        return self._ask(
            b"POST %b HTTP/1.1\r\n%b%bcontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
            % (self._target(path), self._common, _lines(headers), len(body), body)
        )

    def _target(self, path: str) -> bytes:
        return f"{self._path}{path}".encode("ascii")

    async def _ask(self, request: bytes) -> Answer:
        while True:
            is_new = not self._idle
            connection = await self._connected() if is_new else self._idle.pop()
            self._busy.add(connection)
            try:
                await connection.ask(request)
            except BaseException as error:
                self._release(connection)
                if isinstance(error, Broken) and not is_new and connection.was_closed:
                    continue  # while it was idle: the server has not seen this request
                raise
            return Answer(connection, self._release)

    async def _connected(self) -> Connection:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                made = await loop.create_connection(
                    lambda: Connection(self._silence_s, self._lost), self._host, self._port, ssl=self._ssl
                )
        except ssl.SSLCertVerificationError as error:
            raise Broken("its certificate is not accepted") from error
        except (OSError, TimeoutError) as error:
            is_full = isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)
            raise (NoRoom if is_full else Broken)(type(error).__name__) from error
        return made[1]

    def _release(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if not connection.is_reusable():
            connection.abort()
            return
        connection.idle_since_s = connection.loop.time()
        self._idle.append(connection)
        if self._sweeper is None:
            self._sweeper = connection.loop.call_later(self._idle_s, self._sweep, connection.loop)

    def _lost(self, connection: Connection) -> None:
        self._busy.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        until_s = loop.time() - self._idle_s
        while self._idle and self._idle[0].idle_since_s <= until_s:
            self._idle.popleft().abort()
        self._sweeper = None
        if self._idle:
            self._sweeper = loop.call_at(self._idle[0].idle_since_s + self._idle_s, self._sweep, loop)


class Answer:
    """status; headers: names in lower case, the last of several."""

    def __init__(self, connection: Connection, release: Callable[[Connection], None]) -> None:
        self.status, self.headers = connection.status, connection.headers
        self._connection: Connection | None = connection
        self._release = release

    async def piece(self) -> bytes:
        """What has come of the body since the last one; b"" at its end. Raises Broken where it breaks off."""
        assert self._connection is not None, "a closed answer has no more to say"
        return await self._connection.piece()

    async def each(self, take: Take) -> None:
        """As Connection.each."""
        assert self._connection is not None, "a closed answer has no more to say"
        await self._connection.each(take)

    async def read(self, most: int) -> bytes:
        """The whole body. Raises Broken, also for one of more than `most` bytes."""
        parts, size = [], 0
        while piece := await self.piece():
            parts.append(piece)
            size += len(piece)
            if size > most:
                raise Broken(f"more than {most} bytes")
        return b"".join(parts)

    def close(self) -> None:
        """Before its end, the connection is closed, by which the server knows. Again does nothing."""
        if self._connection is not None:
            self._release(self._connection)
            self._connection = None


def _checking(authorities: str | None) -> ssl.SSLContext:
    """Checks the server's certificate, and that it is of its host's name."""
    try:
        return ssl.create_default_context(cafile=authorities)
    except ssl.SSLError as error:
        raise ValueError(f"no certificates in {authorities}: {error.reason}") from None
    except OSError as error:
        error.filename = authorities  # which the system's message leaves out
        raise


def _lines(headers: Mapping[str, str]) -> bytes:
    """Raises ValueError where a header would end its line, and so be two."""
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if lines.count("\n") != len(headers) or lines.count("\r") != len(headers):
        raise ValueError("a header with a line end in it")
    return lines.encode("latin-1")
