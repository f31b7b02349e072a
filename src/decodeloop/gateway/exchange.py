"""One HTTP request and its response, over raw ASGI."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl

from starlette.types import Message, Receive, Scope, Send

from decodeloop.gateway.admission import Aliased
from decodeloop.gateway.client import CLIENT, Client
from decodeloop.gateway.errors import error_body
from decodeloop.gateway.ids import random_id
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.store import Idempotency
from decodeloop.gateway.tasks import watched
from decodeloop.gateway.telemetry import Times, Trail
from decodeloop.types import Identity, RequestRefused

__all__ = ["JSON", "Captured", "ClientGone", "Exchange", "inner_request"]

JSON = b"application/json"

Headers = Sequence[tuple[bytes, bytes]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,128}")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


class ClientGone(Exception):
    """The client closed the connection: there is nobody to answer."""


class Exchange:
    def __init__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._scope, self._receive, self._send = scope, receive, send
        self._client: Client | None = scope.get(CLIENT)
        self._headers = {str(name, "latin-1"): value for name, value in scope["headers"]}  # the last of several
        self._is_overheard = False
        self.arrived_s = time.monotonic()
        self.status: int | None = None  # None: no response yet
        self.vouched: Identity | None = None  # who asks, where somebody here knows it
        self.named: Idempotency | None = None  # its idempotency key
        self.aliased: Aliased | None = None  # which model answers for the one that it names
        self.outlasts = False  # it is answered to its end, whether or not its client stays
        self.body: bytes | None = None  # once it was read by somebody who passes it on
        self.trail: Trail | None = None  # of a request for an answer
        self.tape: list[bytes] | None = None  # what an answer says, where it is to be kept
        self.told: list[tuple[bytes, bytes]] = []  # headers that the response will have, whatever it is
        asked = self.header("x-request-id")
        is_usable = asked is not None and _REQUEST_ID.fullmatch(asked) is not None
        self.request_id = asked if asked is not None and is_usable else random_id()

    @property
    def method(self) -> str:
        return str(self._scope["method"])

    @property
    def path(self) -> str:
        return str(self._scope["path"])

    @property
    def route(self) -> str:
        """The matched route's pattern: the same for all requests of a kind."""
        return getattr(self._scope.get("route"), "path", "unmatched")

    def path_param(self, name: str) -> str:
        return str(self._scope["path_params"][name])

    def header(self, name: str) -> str | None:
        value = self._headers.get(name)
        return None if value is None else str(value, "latin-1")

    @property
    def peer(self) -> str:
        client = self._scope.get("client")
        return "" if client is None else str(client[0])

    def sole(self, name: str) -> str | None:
        """A header that may come once: two of them could be read differently by whoever stands in front.

        Raises RequestRefused with 400.
        """
        headers = self._scope["headers"]
        if len(headers) > len(self._headers) and [each for each, _ in headers].count(name.encode()) > 1:
            raise RequestRefused(f"the header {name} is there twice", param=name)
        return self.header(name)

    def tell(self, model: str, request_class: str, asked: Mapping[str, object]) -> None:
        """What its body asks, for those who watch."""
        if self.trail is not None:
            self.trail.model, self.trail.request_class, self.trail.asked = model, request_class, asked

    def route_taken(self, pool: str, upstream: str, reason: str) -> None:
        if self.trail is not None:
            self.trail.pool, self.trail.upstream, self.trail.route = pool, upstream, reason

    def record(self, said: bytes) -> None:
        if self.tape is not None:
            self.tape.append(said)

    def failed(self, refused: RequestRefused) -> None:
        if self.trail is not None:
            self.trail.error = refused.code or str(refused.status)

    def time(self, times: Times) -> None:
        if self.trail is not None:
            self.trail.times = times

    def traceparent(self) -> str | None:
        trace = self.header("traceparent")
        return trace if trace is not None and _TRACEPARENT.fullmatch(trace) else None

    def instead(self, path: str, body: bytes) -> Captured:
        """The same caller's request for something else, whose response is kept instead of sent."""
        inner = Captured({**self._scope, "path": path}, self._receive, body)
        inner.request_id, inner.vouched = self.request_id, self.vouched
        inner.named, inner.outlasts = self.named, self.outlasts
        return inner

    def overhear(self, hear: Callable[[Message], None]) -> None:
        """From here on `hear` is told all that is sent."""
        send, self._is_overheard = self._send, True

        async def told(message: Message) -> None:
            hear(message)
            await send(message)

        self._send = told

    async def read_json(self, limits: Limits) -> bytes:
        """The body of a JSON request.

        Raises:
            RequestRefused: not declared as JSON, too large, or too slow.
            ClientGone: closed before the body was complete.
        """
        kind = (self.header("content-type") or "").partition(";")[0].strip().lower()
        if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
            # A page in a browser can post other types to this address without asking: this check stops it.
            raise RequestRefused("the content-type must be application/json", status=415, param="content-type")
        if self.header("content-encoding") not in (None, "identity"):
            raise RequestRefused("compressed bodies are not supported", status=415, param="content-encoding")
        return await self.read(limits.max_body_bytes, limits)

    async def read(self, most: int, limits: Limits) -> bytes:
        """The body, of up to `most` bytes, whatever it is. Raises as `read_json`."""
        if self.body is not None:
            return self.body
        here = None if self._client is None else self._client.body_now()
        if here is not None:
            if len(here) > most:
                raise _too_large(most)
            return here
        declared = self.header("content-length") or "0"
        if declared.isdecimal() and int(declared) > most:
            raise _too_large(most)
        try:
            async with asyncio.timeout(limits.body_timeout_s):
                return await self._read(most)
        except TimeoutError:
            raise RequestRefused("the request body did not arrive in time", status=408) from None

    def query(self, name: str) -> str | None:
        """A value of the URL's query."""
        return dict(parse_qsl(self._scope.get("query_string", b"").decode("latin-1"))).get(name)

    async def _read(self, most: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise _too_large(most)
            parts.append(part)
            if not message.get("more_body", False):
                return b"".join(parts)

    def while_there(self, work: Coroutine[Any, Any, None]) -> Coroutine[Any, Any, None]:
        """Run `work`, after the body has been read, to its end or until the client leaves.

        Raises:
            ClientGone: it left, and the work was cancelled.
        """
        if self.outlasts:
            return work
        if self._client is None:
            return watched(work, self._disconnected())
        return self._while_connected(self._client, work)

    async def _while_connected(self, client: Client, work: Coroutine[Any, Any, None]) -> None:
        if client.gone:
            work.close()
            raise ClientGone
        own = asyncio.current_task()
        assert own is not None, "requests run in tasks"
        is_gone = False

        def gone() -> None:
            nonlocal is_gone
            is_gone = True
            own.cancel()

        client.alarm(gone)
        try:
            await work
        except asyncio.CancelledError:
            if not is_gone or own.uncancel() > 0:
                raise  # someone else's wish
            raise ClientGone from None
        else:
            if is_gone:
                own.uncancel()  # the work was done all the same
        finally:
            client.alarm(None)

    async def _disconnected(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        raise ClientGone

    async def start(self, status: int, headers: Headers) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": self._with_own(headers)})

    def _with_own(self, headers: Headers) -> list[tuple[bytes, bytes]]:
        own = [*headers, (b"x-request-id", self.request_id.encode()), *self.told]
        trace = self.traceparent()
        if trace is not None:
            own.append((b"traceparent", trace.encode()))
        return own

    async def write(self, body: bytes, *, more: bool) -> None:
        """Returns when the connection can take more: a slow reader holds its writer back."""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    def write_now(self, body: bytes) -> bool:
        """A part of the body that isn't its end, without waiting; False: that can't be, and nothing was written."""
        return self._client is not None and not self._is_overheard and self._client.write_now(body)

    async def respond(self, status: int, body: bytes, kind: bytes = JSON, headers: Headers = ()) -> None:
        self.record(body)
        headers = [(b"content-type", kind), (b"content-length", b"%d" % len(body)), *headers]
        if self._client is not None and not self._is_overheard:
            self.status = status
            if self._client.respond_now(status, self._with_own(headers), body):
                return
        await self.start(status, headers)
        await self.write(body, more=False)

    async def refuse(self, refused: RequestRefused, headers: Headers = ()) -> None:
        await self.respond(refused.status, error_body(refused), headers=headers)


class Captured(Exchange):
    """A request that another one is answered by. `captured`: the body of its response, once that is complete."""

    def __init__(self, scope: Scope, receive: Receive, body: bytes) -> None:
        super().__init__(_with_json(scope, body), self._next, self._keep)
        self._outer, self._body = receive, [body]
        self.captured = b""

    async def _next(self) -> Message:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await self._outer()

    async def _keep(self, message: Message) -> None:
        self.captured += message.get("body", b"")


def inner_request(path: str, body: bytes) -> Captured:
    """A request of this process itself, which nobody leaves."""

    async def nobody() -> Message:
        await asyncio.Event().wait()
        raise AssertionError("nobody sets it")

    return Captured({"type": "http", "method": "POST", "path": path, "headers": []}, nobody, body)


def _with_json(scope: Scope, body: bytes) -> Scope:
    kept = [(name, value) for name, value in scope["headers"] if name not in (b"content-type", b"content-length")]
    length = str(len(body)).encode()
    return {**scope, CLIENT: None, "headers": [*kept, (b"content-type", JSON), (b"content-length", length)]}


def _too_large(most: int) -> RequestRefused:
    return RequestRefused(f"the request body is larger than {most} bytes", status=413)
