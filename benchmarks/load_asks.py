"""One request of a load and what must come of it, over a connection of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any


class Violation(Exception):
    """The server did what it must not."""


@dataclass(frozen=True)
class Ask:
    """One request and what must come of it. leave_after: events after which the client hangs up; None: it stays."""

    path: str
    body: bytes
    statuses: tuple[int, ...] = (200,)
    code: str | None = None
    leave_after: int | None = None
    pause_s: float = 0.0  # before each read
    check: Callable[[list[dict[str, Any]]], None] | None = None


@dataclass
class Response:
    status: int
    reader: asyncio.StreamReader
    chunked: bool
    length: int

    async def whole(self) -> bytes:
        return b"".join([part async for part in self.parts()])

    async def parts(self) -> AsyncIterator[bytes]:
        if not self.chunked:
            yield await self.reader.readexactly(self.length)
            return
        while size := int(await self.reader.readline(), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()


async def send(host: str, port: int, path: str, body: bytes | None) -> tuple[Response, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(host, port)
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n"
    if body is not None:
        head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
    writer.write(head.encode() + b"\r\n" + (body or b""))
    status = int((await reader.readline()).split()[1])
    headers = {}
    while line := (await reader.readline()).strip():
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    chunked = headers.get("transfer-encoding") == "chunked"
    return Response(status, reader, chunked, int(headers.get("content-length", 0))), writer


async def perform(host: str, port: int, ask: Ask) -> None:
    """Raises Violation."""
    response, writer = await send(host, port, ask.path, ask.body)
    try:
        if response.status != 200 and response.status not in ask.statuses:
            raise Violation(f"status {response.status}: {(await response.whole())[:300]!r}")
        if response.chunked:
            await follow(response, ask)
            return
        answer = json.loads(await response.whole())
        if response.status != 200:
            refused(answer["error"], ask)
        elif ask.statuses != (200,):
            raise Violation(f"answered, where {ask.statuses} was due")
        elif ask.check is not None:
            ask.check([answer])
    finally:
        writer.close()


def refused(error: dict[str, Any], ask: Ask) -> None:
    if ask.statuses == (200,) or (ask.code is not None and error["code"] != ask.code):
        raise Violation(f"refused: {error}")


async def follow(response: Response, ask: Ask) -> None:
    text, events = "", []
    async for part in response.parts():
        text += part.decode()  # a chunk holds whole events, hence whole characters
        while "\n\n" in text:
            line, text = text.split("\n\n", maxsplit=1)
            if line.startswith(":"):
                continue
            if line == "data: [DONE]":
                if ask.check is not None:
                    ask.check(events)
                return
            events.append(json.loads(line.removeprefix("data: ")))
            if "error" in events[-1]:  # a refusal found out only after heartbeats
                refused(events[-1]["error"], ask)
                return
            if ask.leave_after is not None and len(events) > ask.leave_after:
                return
        await asyncio.sleep(ask.pause_s)
    raise Violation(f"the stream ended after {len(events)} events without [DONE]")
