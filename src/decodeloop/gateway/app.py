"""The gateway as one ASGI application: routes, and the boundary where every exception becomes an answer."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Protocol

from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.routing import Router as Routes
from starlette.types import Receive, Scope, Send

from decodeloop.gateway.access_log import AccessLog
from decodeloop.gateway.admission import Admission
from decodeloop.gateway.again import Memory
from decodeloop.gateway.aliases import Aliases
from decodeloop.gateway.answers import AnswerCache
from decodeloop.gateway.batches.routes import open_batches
from decodeloop.gateway.client_events import ClientEvents
from decodeloop.gateway.errors import internal_error, shutting_down
from decodeloop.gateway.exchange import ClientGone, Exchange
from decodeloop.gateway.explain import Explain
from decodeloop.gateway.fleet import Fleet, Router, idlest
from decodeloop.gateway.generate import CHAT, COMPLETION, Api, Generate
from decodeloop.gateway.governance import Governance
from decodeloop.gateway.identity import Authenticator, authenticator_for
from decodeloop.gateway.meter import Meter
from decodeloop.gateway.metrics import Exposition
from decodeloop.gateway.metrics_classes import of_classes, of_governance
from decodeloop.gateway.openapi import OpenApi
from decodeloop.gateway.pages import Pages
from decodeloop.gateway.reference import Reference
from decodeloop.gateway.repeats import Repeats
from decodeloop.gateway.settings import GatewaySettings, Limits
from decodeloop.gateway.telemetry import Observer
from decodeloop.gateway.upstreams import RelayUpstream, Upstream
from decodeloop.gateway.upstreams.remote import RemoteUpstream
from decodeloop.gateway.watch import Watch
from decodeloop.gateway.wire.parse import Classify, unclassified
from decodeloop.governance.certificate import Certificate
from decodeloop.types import RequestRefused

__all__ = ["Gateway", "build_app"]

log = logging.getLogger(__name__)

Handler = Callable[[Exchange], Awaitable[None]]

CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
EXCHANGE = "decodeloop.exchange"  # where a scope carries it


def build_app(
    settings: GatewaySettings,
    upstreams: Mapping[str, Upstream | RelayUpstream],
    *,
    route: Router = idlest,
    classify: Classify = unclassified,
    observer: Observer | None = None,
    governance: Governance | None = None,
    certificates: Mapping[str, Certificate] | None = None,
) -> Gateway:
    """An ASGI application that serves `upstreams` (by name) and those of the settings; its lifespan starts and closes
    them. classify: the class of requests that declare none. certificates: by pool, whose signatures were checked.

    Raises:
        ValueError: a name that is taken, or that no upstream has.
    """
    fleet = _fleet(settings, upstreams, route, certificates)
    meter, watch = Meter(), Watch(observer)
    admission = Admission(settings.limits.max_concurrent_requests, None if governance is None else governance.clerk)
    authenticator = authenticator_for(settings.api_keys) if governance is None else governance.authenticator
    cache = AnswerCache(settings.answer_cache, time.monotonic)
    memory = Memory(cache, admission, fleet, settings.limits)
    aliases = Aliases(settings.aliases, fleet, admission, settings.limits)
    of_more = [partial(of_classes, watch.classes)] + (
        [] if governance is None else [partial(of_governance, governance)]
    )
    exposition = Exposition(meter, fleet, admission, cache, more=of_more)

    def generate(api: Api) -> Generate:
        return Generate(api, settings, authenticator, admission, fleet, meter, memory, aliases, classify)

    chat, complete = generate(CHAT), generate(COMPLETION)
    posted: dict[str, Handler] = {
        CHAT_PATH: chat,
        "/v1/chat/speculative-completions": Reference(chat, admission, settings.limits),
        COMPLETIONS_PATH: complete,
    }
    if governance is not None:
        posted = _governed(posted, governance, authenticator, admission, settings.limits)
    routes = [
        *(_route("POST", path, handler) for path, handler in posted.items()),
        _route("POST", "/v1/explain", Explain(aliases, authenticator, admission, fleet, settings.limits, classify)),
        *_page_routes(Pages(authenticator, admission, fleet, exposition, settings.aliases)),
    ]
    parts: list[Part] = [fleet] if governance is None else [governance, fleet]
    if settings.batches.directory is not None:
        asked = {CHAT_PATH: chat, COMPLETIONS_PATH: complete}
        runner, batches = open_batches(settings.batches, asked, admission, authenticator, settings.limits, watch=watch)
        parts.append(runner)
        routes += [_route(*each) for each in batches.routes()]
    return Gateway(
        routes,
        fleet=fleet,
        parts=parts,
        admission=admission,
        meter=meter,
        watch=watch,
        retry_after_s=settings.retry_after_s,
    )


def _fleet(
    settings: GatewaySettings,
    upstreams: Mapping[str, Upstream | RelayUpstream],
    route: Router,
    certificates: Mapping[str, Certificate] | None,
) -> Fleet:
    """Of this process's servers and of those elsewhere. Raises ValueError for a name that both have."""
    remote = {name: RemoteUpstream(name, each) for name, each in settings.upstreams.items()}
    if remote.keys() & upstreams.keys():
        raise ValueError(f"an upstream of this process is called {', '.join(remote.keys() & upstreams.keys())} already")
    return Fleet(
        {**upstreams, **remote}, settings.pools, route=route, breaker=settings.breaker, certificates=certificates
    )


def _governed(
    posted: Mapping[str, Handler],
    governance: Governance,
    authenticator: Authenticator,
    admission: Admission,
    limits: Limits,
) -> dict[str, Handler]:
    """What is posted, run and billed once for each idempotency key; and what clients tell of answers."""
    repeats = Repeats(governance.clerk, governance.settings.idempotency, authenticator, admission, limits)
    events = ClientEvents(governance.events, governance.settings.events, authenticator, limits, governance.clock)
    return {**{path: repeats.before(handler) for path, handler in posted.items()}, "/v1/events": events}


def _page_routes(pages: Pages) -> list[Route]:
    return [
        _route("GET", "/v1/pools", pages.pools),
        _route("GET", "/v1/models", pages.models),
        _route("GET", "/v1/models/{model:path}", pages.model),
        _route("GET", "/v1/policy", pages.policy),
        _route("GET", "/health", pages.health),
        _route("GET", "/ready", pages.ready),
        _route("GET", "/metrics", pages.metrics),
        _route("GET", "/openapi.json", OpenApi()),
        _route("GET", "/", pages.welcome),
    ]


class Part(Protocol):
    """What starts and ends with the application; started in order, closed in the opposite one."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Gateway:
    def __init__(
        self,
        routes: list[Route],
        *,
        fleet: Fleet,
        parts: Sequence[Part],
        admission: Admission,
        meter: Meter,
        watch: Watch,
        retry_after_s: int,
    ) -> None:
        self.fleet, self._admission, self._meter, self._retry_after_s = fleet, admission, meter, retry_after_s
        self._parts, self._watch, self._access = parts, watch, AccessLog()
        self._router = Routes(routes, redirect_slashes=False, lifespan=self._lifespan)
        plain = [route for route in routes if not route.param_convertors]
        self._plain = {(method, route.path): route for route in plain for method in route.methods or ()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        exchange = Exchange(scope, receive, send)
        scope["app"] = self  # asks starlette to raise its refusals instead of answering them
        scope[EXCHANGE] = exchange
        try:
            await self._answered(scope, receive, send, exchange)
        finally:
            status = exchange.status or 499  # nobody was there to be answered
            self._meter.responses[exchange.method, exchange.route, status] += 1
            took_s = time.monotonic() - exchange.arrived_s
            self._watch.ended(exchange, status)
            self._access.tell(exchange.request_id, exchange.method, exchange.path, status, took_s)

    async def _answered(self, scope: Scope, receive: Receive, send: Send, exchange: Exchange) -> None:
        try:
            route = self._plain.get((scope["method"], scope["path"]))
            if route is None:
                await self._router(scope, receive, send)
            else:  # without a look at all the others
                scope["route"] = route
                await route.app(scope, receive, send)
        except ClientGone:
            return
        except RequestRefused as refused:
            await self._refuse(exchange, refused, {})
        except HTTPException as refused:
            await self._refuse(exchange, _of_routing(refused, exchange), refused.headers or {})
        except asyncio.CancelledError:  # the server's shutdown, out of patience: there is nothing above to tell
            if exchange.status is None:
                await self._refuse(exchange, shutting_down(), {})
        except Exception:
            if exchange.status is not None:
                raise
            log.exception("request %s failed", exchange.request_id)
            await self._refuse(exchange, internal_error(exchange.request_id), {})

    async def _refuse(self, exchange: Exchange, refused: RequestRefused, extra: Mapping[str, str]) -> None:
        exchange.failed(refused)
        if refused.status >= 500:
            log.warning("request %s: %d %s", exchange.request_id, refused.status, refused.message)
        headers = [(name.lower().encode(), value.encode()) for name, value in extra.items()]
        headers += self._when(refused)
        if refused.status == 401:
            headers.append((b"www-authenticate", b"Bearer"))
        if refused.status in (408, 413):
            headers.append((b"connection", b"close"))  # rather than read the rest of the body
        await exchange.refuse(refused, headers)

    def _when(self, refused: RequestRefused) -> list[tuple[bytes, bytes]]:
        """May it be sent again?"""
        after_s = refused.retry_after_s
        if after_s is None:
            after_s = self._retry_after_s if refused.status in (429, 503) else None
        if after_s is None:
            return []
        if math.isinf(after_s):
            return [(b"x-should-retry", b"false")]
        return [
            (b"retry-after", str(math.ceil(after_s)).encode()),
            (b"retry-after-ms", str(math.ceil(1e3 * after_s)).encode()),
        ]

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            stack.callback(self._access.write)
            for part in self._parts:
                await part.start()
                stack.push_async_callback(part.close)
            yield
            self._admission.draining = True


class _Endpoint:
    """Makes a handler of exchanges an ASGI application."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        return self._handler(scope[EXCHANGE])


def _route(method: str, path: str, handler: Handler) -> Route:
    return Route(path, _Endpoint(handler), methods=[method])


def _of_routing(refused: HTTPException, exchange: Exchange) -> RequestRefused:
    if refused.status_code == 405:
        return RequestRefused(f"{exchange.path} does not take {exchange.method}", status=405)
    return RequestRefused(f"no such URL: {exchange.method} {exchange.path[:200]}", status=404, code="unknown_url")
