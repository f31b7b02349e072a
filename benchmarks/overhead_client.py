"""What asks a gateway, or the mock server behind it, when its cost is measured: as little as asks at all."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

KEY = "sk-benchmark-0123456789abcdef"


class Client:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, *, hold: asyncio.Event | None = None) -> float:
        """Seconds to the first byte of the answer's body. hold: leave the rest unread until it is set."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        reader, writer = self.streams
        began = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"port {self.port} answered {head[:200]!r}")
        lower = head.lower()
        if b"content-length:" in lower:
            length = int(lower.partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            return time.perf_counter() - began
        first_s = 0.0
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            await reader.readexactly(size + 2)
            first_s = first_s or time.perf_counter() - began
            if size == 0:
                return first_s
            if hold is not None:
                await hold.wait()

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


def body(*, stream: bool = False, chunks: int = 1, gap_ms: float = 0.0) -> bytes:
    text = "You review code. " * 40
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Is this right?"}]
    fields: dict[str, Any] = {"model": "mock", "messages": messages, "max_tokens": 64, "temperature": 0.5}
    return json.dumps({**fields, "stream": stream, "user": f"chunks={chunks} gap_ms={gap_ms}"}).encode()


async def many(port: int, count: int, at_once: int, asked: bytes) -> None:
    clients = [Client(port) for _ in range(at_once)]

    async def run(client: Client, share: int) -> None:
        for _ in range(share):
            await client.ask(asked)
        client.close()

    await asyncio.gather(*(run(client, count // at_once) for client in clients))
