"""Another server with OpenAI's API, on a real socket, that says what a test tells it to."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import orjson
from aiohttp import web

from asgi import lifespan
from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams.remote import RemoteSettings

Play = Callable[["Elsewhere", web.Request, dict[str, Any]], Any]  # an async function that gives a web.StreamResponse


class Elsewhere:
    """`bodies`: what it was asked. `gone`: answers whose reader left before their end."""

    def __init__(self, play: Play, *, models: Sequence[str] = ("tiny",), metrics: str | None = "") -> None:
        self.play, self.models, self.page = play, models, metrics
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.open = self.gone = self.looks = 0
        self.most_open = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self, context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
        """context: where it is asked over https."""
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/metrics", self._metrics)
        app.router.add_post("/v1/{rest:.*}", self._answer)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.url = f"{'http' if context is None else 'https'}://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            await runner.cleanup()

    async def _models(self, request: web.Request) -> web.Response:
        self.looks += 1
        return web.json_response({"data": [{"id": each, "max_model_len": 2048} for each in self.models]})

    async def _metrics(self, request: web.Request) -> web.Response:
        return web.Response(status=501) if self.page is None else web.Response(text=self.page)

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = orjson.loads(await request.read())
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            answer: web.StreamResponse = await self.play(self, request, body)
            return answer
        except (asyncio.CancelledError, ConnectionError):
            self.gone += 1
            raise
        finally:
            self.open -= 1


def event(value: Any) -> bytes:
    return b"data: " + (value if isinstance(value, bytes) else orjson.dumps(value)) + b"\n\n"


def piece(text: str, **choice: Any) -> dict[str, Any]:
    return {"id": "c", "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **choice}]}


USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
END = event({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
USAGE_EVENT = event({"id": "c", "choices": [], "usage": USAGE})
DONE = event(b"[DONE]")
SAYS = [event(piece(text)) for text in ("žlutý ", "kůň ", "🐴")]
WHOLE = [*SAYS, END, USAGE_EVENT, DONE]  # a stream of them


def streams(*pieces: bytes | float) -> Play:
    """Bytes as they are, each a write of its own; numbers are seconds to wait."""

    async def play(self: Elsewhere, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for each in pieces:
            if isinstance(each, bytes):
                await response.write(each)
            else:
                await asyncio.sleep(each)
        return response

    return play


def answers(body: Any = None, *, status: int = 200, headers: Mapping[str, str] = {}, after_s: float = 0.0) -> Play:
    value = (
        {"id": "c", "choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}], "usage": USAGE}
        if body is None
        else body
    )

    async def play(self: Elsewhere, request: web.Request, asked: dict[str, Any]) -> web.Response:
        await asyncio.sleep(after_s)
        return web.Response(body=orjson.dumps(value), status=status, headers=headers, content_type="application/json")

    return play


async def breaks(self: Elsewhere, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    """Closes the connection without an answer."""
    assert request.transport is not None
    request.transport.close()
    await asyncio.sleep(60)
    raise AssertionError("the connection was closed")


@asynccontextmanager
async def gateway_before(
    *servers: Elsewhere, remote: Mapping[str, Any] = {}, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway whose upstreams are the servers, called a, b, c and so on."""
    from contextlib import AsyncExitStack

    async with AsyncExitStack() as stack:
        names = dict(zip("abcdefgh", servers, strict=False))
        urls = {name: await stack.enter_async_context(server.serving()) for name, server in names.items()}
        upstreams = {name: RemoteSettings(url=url, **{"poll_s": 60.0, **remote}) for name, url in urls.items()}
        app = build_app(GatewaySettings(upstreams=upstreams, **settings), {})
        await stack.enter_async_context(lifespan(app))
        yield app
