"""A server of other makes: it answers with the bytes that a test gives it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

Answering = Callable[[str, dict], Sequence[bytes | float]]  # (path, body) -> bytes to write, seconds to wait


@dataclass
class Canned:
    url: str
    asked: list[tuple[str, dict]] = field(default_factory=list)
    hung_up: int = 0


def head(status: int = 200, **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def whole(value: object, status: int = 200) -> list[bytes]:
    body = json.dumps(value).encode()
    return [head(status, content_length=str(len(body))) + body]


def stream(*events: object, done: bool = True) -> list[bytes]:
    """Chunked, an event a chunk."""
    data = [b"data: " + (json.dumps(event).encode() if not isinstance(event, bytes) else event) for event in events]
    if done:
        data.append(b"data: [DONE]")
    parts = [part + b"\n\n" for part in data]
    chunks = [f"{len(part):x}\r\n".encode() + part + b"\r\n" for part in parts]
    return [head(transfer_encoding="chunked"), *chunks, b"0\r\n\r\n"]


def says(text: str, **choice: object) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}


def models(owned_by: str = "me", *names: str) -> list[bytes]:
    return whole({"data": [{"id": name, "owned_by": owned_by} for name in names or ("m",)]})


@asynccontextmanager
async def canned(answer: Answering) -> AsyncIterator[Canned]:
    made = Canned("")

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                _, path, _ = line.decode().split(" ", 2)
                length = 0
                while (header := await reader.readline()) not in (b"\r\n", b""):
                    if header.lower().startswith(b"content-length:"):
                        length = int(header.split(b":")[1])
                body = json.loads(await reader.readexactly(length) or b"{}")
                made.asked.append((path, body))
                for step in answer(path, body):
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    elif step < 0:
                        return
                    else:
                        await asyncio.sleep(step)
        except (ConnectionError, asyncio.IncompleteReadError):
            made.hung_up += 1
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield made
    finally:
        server.close()
