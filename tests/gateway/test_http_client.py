"""The client of upstreams against servers that say exactly these bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from decodeloop.gateway.upstreams.http import Answer, Broken, HttpClient

Talk = Callable[["Server", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

BODY = "žlutý 🎉 kůň".encode()
WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n" % (
    BODY[:5],
    len(BODY) - 5,
    BODY[5:],
)
TO_THE_END = b"HTTP/1.1 200 OK\r\n\r\n" + BODY
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"


@dataclass
class Server:
    talk: Talk
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)  # a client closed before its answer's end

    async def request(self, reader: asyncio.StreamReader) -> bytes:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), b":0")
        self.requests.append(head + await reader.readexactly(int(length.split(b":")[1])))
        return self.requests[-1]

    @asynccontextmanager
    async def client(self, **settings: float) -> AsyncIterator[HttpClient]:
        talks: set[asyncio.Task[None] | None] = set()

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            talks.add(asyncio.current_task())
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self.talk(self, reader, writer)
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        client = HttpClient(
            f"http://127.0.0.1:{port}/base/", {"x-own": "1"}, **{"connect_s": 5, "silence_s": 5, **settings}
        )
        try:
            yield client
        finally:
            await client.close()
            server.close()
            await asyncio.gather(*filter(None, talks))


def always(answer: bytes, *, at_once: bool = True, closing: bool = False) -> Talk:
    async def talk(self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await self.request(reader)
            for part in [answer] if at_once else [answer[i : i + 1] for i in range(len(answer))]:
                writer.write(part)
                await writer.drain()
                if not at_once:
                    await asyncio.sleep(0)
            if closing:
                return

    return talk


async def said(client: HttpClient) -> bytes:
    answer = await client.post("/v1/x", b"{}", {"x-request-id": "7"})
    try:
        return await answer.read(1000)
    finally:
        answer.close()


def test_what_is_sent():
    async def run() -> None:
        server = Server(always(WHOLE))
        async with server.client() as client:
            await said(client)
            answer = await client.get("/v1/models")
            answer.close()
        head, _, body = server.requests[0].partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        assert first == "POST /base/v1/x HTTP/1.1"
        assert body == b"{}"
        headers = dict(line.split(": ") for line in lines)
        assert headers.pop("host").startswith("127.0.0.1:")
        assert headers == {
            "x-own": "1",
            "x-request-id": "7",
            "content-type": "application/json",
            "content-length": "2",
            "accept-encoding": "identity",
        }
        assert server.requests[1].startswith(b"GET /base/v1/models HTTP/1.1\r\n")

    asyncio.run(run())


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize(
    ("answer", "connections"), [(WHOLE, 1), (CHUNKED, 1), (EARLY + WHOLE, 1), (EARLY + CHUNKED, 1), (TO_THE_END, 3)]
)
def test_answers_come_whole_however_they_are_cut(answer, connections, at_once):
    async def run() -> None:
        server = Server(always(answer, at_once=at_once, closing=answer is TO_THE_END))
        async with server.client() as client:
            assert [await said(client) for _ in range(3)] == [BODY] * 3
        assert server.connections == connections

    asyncio.run(run())


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Le",
        WHOLE[:-1],
        CHUNKED[:-5],
        CHUNKED[:-1],
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nx: %b" % (b"y" * 2**17),
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx",
    ],
)
def test_what_breaks_off_is_told(answer):
    async def run() -> None:
        async with Server(always(answer, closing=True)).client() as client:
            for _ in range(2):
                with pytest.raises(Broken):
                    await said(client)

    asyncio.run(run())


def test_a_server_that_is_not_there_and_one_that_says_nothing():
    async def run() -> None:
        async with Server(always(WHOLE)).client() as client:
            pass  # it is closed now
        with pytest.raises(Broken, match="ConnectionRefused"):
            await said(client)

        async def silent(self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.request(reader)
            writer.write(WHOLE[:-1])
            await reader.read()
            self.left.set()

        server = Server(silent)
        async with server.client(silence_s=0.05) as client:
            with pytest.raises(Broken, match="TimeoutError"):
                await said(client)
            await server.left.wait()

    asyncio.run(run())


def test_a_connection_that_was_closed_in_between_is_replaced():
    """Even if that is found out only by the request: the server has not seen it."""

    async def once(self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.request(reader)
        writer.write(WHOLE)
        if self.connections % 2:
            await reader.readexactly(1)  # of the next request

    async def run() -> None:
        server = Server(once)
        async with server.client() as client:
            assert [await said(client) for _ in range(3)] == [BODY] * 3
            await asyncio.sleep(0)
        assert server.connections >= 3

    asyncio.run(run())


def test_a_new_connection_that_is_closed_is_not_tried_again():
    async def run() -> None:
        server = Server(always(b"", closing=True))
        async with server.client() as client:
            with pytest.raises(Broken):
                await said(client)
        assert len(server.requests) == 1

    asyncio.run(run())


@pytest.mark.parametrize("how", ["closed", "cancelled", "before"])
def test_whoever_leaves_early_is_seen_to(how):
    async def slow(self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self.request(reader)
        if how != "before":
            writer.write(CHUNKED[:-20])
        await reader.read()
        self.left.set()

    async def run() -> None:
        server = Server(slow)
        async with server.client() as client:
            if how == "closed":
                answer: Answer = await client.post("/", b"")
                await answer.piece()
                answer.close()
                answer.close()
            else:
                task = asyncio.create_task(said(client))
                while not server.requests:
                    await asyncio.sleep(0.001)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await server.left.wait()

    asyncio.run(run())


def test_a_reader_that_waits_holds_the_server_back():
    total, wrote = 64 * 2**20, 0

    async def flood(self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal wrote
        await self.request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while wrote < total:
            writer.write(b"x" * 2**16)
            await writer.drain()
            wrote += 2**16

    async def run() -> None:
        async with Server(flood).client(silence_s=0.2) as client:
            answer = await client.post("/", b"")
            await asyncio.sleep(0.5)  # longer than a silence may be: it is not the server's
            assert wrote < total / 2
            size = 0
            while piece := await answer.piece():
                size += len(piece)
            assert size == total
            answer.close()

    asyncio.run(run())


def test_unused_connections_are_closed():
    async def run() -> None:
        async def until_left(self: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self.request(reader)
            writer.write(WHOLE)
            await reader.read()
            self.left.set()

        server = Server(until_left)
        async with server.client(idle_s=0.05) as client:
            await said(client)
            await server.left.wait()

    asyncio.run(run())


def test_a_header_is_one_line():
    async def run() -> None:
        async with Server(always(WHOLE)).client() as client:
            with pytest.raises(ValueError, match="line end"):
                await client.post("/", b"", {"x": "1\r\ny: 2"})

    asyncio.run(run())
    with pytest.raises(ValueError, match="names no host"):
        HttpClient("http:///v1", {}, connect_s=1, silence_s=1)
