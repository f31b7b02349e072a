"""Relayed streams between real sockets, where no task is woken for a piece."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from canned import Answering, Canned, canned, models, says, stream
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams.remote import RemoteSettings
from listening import listening

EVENTS = [says(f"{place} žluťoučký 🐴 " + "x" * 80_000) for place in range(600)]
TEXT = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in EVENTS) + b"data: [DONE]\n\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True}).encode()
ASK = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


@asynccontextmanager
async def relayed(
    answer: Answering, **settings: float
) -> AsyncIterator[tuple[Canned, asyncio.StreamReader, asyncio.StreamWriter]]:
    """The server behind a gateway, and a connection on which a stream was asked for."""
    async with canned(lambda path, body: models() if path == "/v1/models" else answer(path, body)) as server:
        made = GatewaySettings(upstreams={"a": RemoteSettings(url=server.url, poll_s=60.0)}, **settings)
        gateway = listening(build_app(made, {}), made)
        _, port = await asyncio.to_thread(gateway.__enter__)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
        writer.write(ASK % (len(BODY), BODY))
        try:
            yield server, reader, writer
        finally:
            writer.close()
            await asyncio.to_thread(gateway.__exit__, None, None, None)


async def dechunked(reader: asyncio.StreamReader) -> list[bytes]:
    chunks = []
    while size := int(await reader.readline(), 16):
        chunks.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return chunks


def test_a_reader_that_waits_holds_the_server_back_and_misses_nothing():
    wrote = 0

    def answer(path, body):
        nonlocal wrote
        for part in stream(*EVENTS):
            wrote += len(part)
            yield part

    async def run() -> None:
        async with relayed(answer, heartbeat_s=0.05) as (_, reader, _):
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.3)
            assert wrote < 0.9 * len(TEXT), "what all sockets' buffers take is less"
            chunks = await dechunked(reader)
        assert b"".join(chunk for chunk in chunks if not chunk.startswith(b":")) == TEXT
        assert all(chunk.endswith(b"\n\n") for chunk in chunks), "comments stay between events"

    asyncio.run(run())


@pytest.mark.parametrize("after", [b"200 OK", b"two"])
def test_a_reader_that_leaves_is_followed(after):
    parts = stream(says("one"), says("two"), done=False)[:-1]

    def answer(path, body):
        yield from parts
        while True:
            yield 0.01
            yield b"3\r\n:x\n\r\n"

    async def run() -> None:
        async with relayed(answer) as (server, reader, writer):
            await reader.readuntil(after)
            writer.transport.abort()
            while not server.hung_up:
                await asyncio.sleep(0.01)

    asyncio.run(run())


def test_a_server_that_breaks_off_is_told_in_the_stream():
    async def run() -> None:
        async with relayed(lambda *_: [*stream(says("one"), done=False)[:-1], 0.05, -1]) as (_, reader, _):
            await reader.readuntil(b"\r\n\r\n")
            chunks = await dechunked(reader)
            assert b'"one"' in chunks[0]
            assert b"upstream a broke off" in chunks[-1]
            assert b"[DONE]" not in b"".join(chunks)

    asyncio.run(run())
