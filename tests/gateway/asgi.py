"""Drives an ASGI application in the test's own event loop, one message at a time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson

from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.settings import GatewaySettings
from scripted import MODEL, ScriptedUpstream

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
JSON_HEADERS = {"content-type": "application/json"}


def gateway(upstream: ScriptedUpstream, **settings: Any) -> Gateway:
    return build_app(GatewaySettings(**settings), {"first": upstream})


def completion(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "prompt": "Hi", **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], **fields}


@dataclass(frozen=True)
class Response:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)

    def events(self) -> list[Any]:
        """The data of a complete event stream, in order; DONE as text."""
        *blocks, rest = self.body.split(b"\n\n")
        assert rest == b"", "every event ends with a blank line"
        data = [block.removeprefix(b"data: ") for block in blocks if not block.startswith(b":")]
        return ["[DONE]" if each == b"[DONE]" else orjson.loads(each) for each in data]


class Connection:
    """One request. `sent` holds what the application wrote; clear `writable` to be a client that does not read."""

    def __init__(self, app: Gateway, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> None:
        self.incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.incoming.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.sent: list[dict[str, Any]] = []
        self.writable = asyncio.Event()
        self.writable.set()
        self._wrote = asyncio.Event()
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()],
        }
        self.task = asyncio.create_task(app(scope, self.incoming.get, self._send))

    async def _send(self, message: Any) -> None:
        await self.writable.wait()
        self.sent.append(message)
        self._wrote.set()

    def disconnect(self) -> None:
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def wrote(self, part: bytes) -> None:
        """Wait until the body so far holds `part`."""
        while part not in self.body:
            self._wrote.clear()
            await self._wrote.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def response(self) -> Response:
        await self.task
        start, *rest = self.sent
        assert [message["type"] for message in self.sent] == ["http.response.start"] + ["http.response.body"] * len(
            rest
        )
        assert [message["more_body"] for message in rest] == [True] * (len(rest) - 1) + [False]
        headers = {name.decode(): value.decode() for name, value in start["headers"]}
        if "content-length" in headers:
            assert int(headers["content-length"]) == len(self.body)
        return Response(start["status"], headers, self.body)


def connect(
    app: Gateway, method: str, path: str, body: Any = b"", headers: Mapping[str, str] = JSON_HEADERS
) -> Connection:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Connection(app, method, path, raw, headers)


async def call(
    app: Gateway, method: str, path: str, body: Any = b"", headers: Mapping[str, str] = JSON_HEADERS
) -> Response:
    return await connect(app, method, path, body, headers).response()


def ask(upstream: ScriptedUpstream, path: str, body: Any, headers: Mapping[str, str] = {}, **settings: Any) -> Response:
    """One POST to a fresh gateway, from start to end."""

    async def run() -> Response:
        return await call(gateway(upstream, **settings), "POST", path, body, {**JSON_HEADERS, **headers})

    return asyncio.run(run())


def get(upstream: ScriptedUpstream, path: str, headers: Mapping[str, str] = {}, **settings: Any) -> Response:
    async def run() -> Response:
        return await call(gateway(upstream, **settings), "GET", path, b"", headers)

    return asyncio.run(run())


async def settled(upstream: ScriptedUpstream) -> None:
    """Wait until no stream of `upstream` is open."""
    while upstream.open:
        await asyncio.sleep(0)


@asynccontextmanager
async def lifespan(app: Gateway) -> AsyncIterator[None]:
    incoming: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    task = asyncio.create_task(app({"type": "lifespan", "state": {}}, incoming.get, outgoing.put))
    incoming.put_nowait({"type": "lifespan.startup"})
    assert (await outgoing.get())["type"] == "lifespan.startup.complete"
    yield
    incoming.put_nowait({"type": "lifespan.shutdown"})
    assert (await outgoing.get())["type"] == "lifespan.shutdown.complete"
    await task
