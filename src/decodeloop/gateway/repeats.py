"""A request with an Idempotency-Key: billed once; sent again, it is told the same answer again.

Where a gateway died with the answer, its request is run again, and what was charged for the first run is taken back.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
from starlette.types import Message

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.errors import error_body
from decodeloop.gateway.exchange import JSON, Exchange
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.sse import HEARTBEAT
from decodeloop.gateway.standing import IDEMPOTENCY, key_refusal
from decodeloop.gateway.store import Idempotency, Recalled, Refusal, StoreUnavailable
from decodeloop.governance.ledger import LedgerRow
from decodeloop.governance.settings import IdempotencySettings
from decodeloop.types import Identity, RequestRefused

__all__ = ["Answered", "Desk", "Repeats"]

LOOK_S = 0.1  # between looks at whether the first is answered
MAX_KEY = 255
TAKEN = ("idempotency_key_in_flight", "idempotency_key_used")
AGAIN = (b"content-type", b"cache-control", b"x-accel-buffering")  # and those of ours


class Desk(Protocol):
    """Where keys and the answers under them are kept."""

    async def recall(self, named: Idempotency) -> Recalled: ...

    def keep(self, named: Idempotency, request_id: str, answer: bytes) -> None: ...

    def take_back(self, estimate: LedgerRow) -> None:
        """What a request was charged whose gateway died with the answer; its key is free soon."""
        ...

    def note_repeat(self, identity: Identity, earlier: str) -> None:
        """For the audit."""
        ...


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """A response, in the pieces it was sent in."""

    status: int
    headers: list[tuple[bytes, bytes]]
    parts: list[bytes]

    @property
    def is_stream(self) -> bool:
        return any(name == b"content-type" and value.startswith(b"text/event-stream") for name, value in self.headers)


_out = msgspec.msgpack.Encoder()
_in = msgspec.msgpack.Decoder(Answered)


@dataclass(slots=True)
class _Copy:
    """Of what is sent. answer: once all of it was, if it was no more than `most` bytes."""

    most: int
    status: int = 0
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    answer: Answered | None = None

    def hear(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = [pair for pair in message["headers"] if pair[0] in AGAIN or _is_ours(pair[0])]
            return
        part = message.get("body", b"")
        self.size += len(part)
        if self.size > self.most:
            self.parts = []
            return
        if part and part != HEARTBEAT:
            self.parts.append(part)
        if not message.get("more_body", False):
            self.answer = Answered(self.status, self.headers, self.parts)


@dataclass(frozen=True, slots=True)
class Repeats:
    """Stands before the handlers of requests that are billed."""

    desk: Desk
    settings: IdempotencySettings
    authenticator: Authenticator
    admission: Admission
    limits: Limits

    def before(self, handler: Callable[[Exchange], Awaitable[None]]) -> Callable[[Exchange], Awaitable[None]]:
        async def handle(exchange: Exchange) -> None:
            if exchange.header(IDEMPOTENCY):
                await self._handle(exchange, handler)
            else:
                await handler(exchange)

        return handle

    async def _handle(self, exchange: Exchange, handler: Callable[[Exchange], Awaitable[None]]) -> None:
        identity = exchange.vouched or self.authenticator.identify(exchange)
        with self.admission.admitted():
            exchange.body = await exchange.read_json(self.limits)
        named = _named(exchange, identity, exchange.body)
        exchange.vouched, exchange.named, exchange.outlasts = identity, named, True
        until_s = asyncio.get_running_loop().time() + self.settings.wait_s
        while True:
            recalled = await self._recalled(named, until_s)
            if recalled.answer is not None:
                self.desk.note_repeat(identity, recalled.earlier)
                await _tell(exchange, _in.decode(recalled.answer))
                return
            if recalled.refusal is not None:
                raise key_refusal(recalled.refusal, recalled.earlier)
            if await self._first(exchange, named, handler):
                return

    async def _recalled(self, named: Idempotency, until_s: float) -> Recalled:
        """Once it is answered, or there is no more time to wait for that."""
        with self.admission.admitted():
            while True:
                try:
                    recalled = await self.desk.recall(named)
                except StoreUnavailable:
                    raise RequestRefused(
                        "idempotency keys can't be looked up now; try again soon", status=503, code="books_unavailable"
                    ) from None
                if recalled.estimate is not None:
                    self.desk.take_back(recalled.estimate)
                if recalled.refusal is not Refusal.IN_FLIGHT or asyncio.get_running_loop().time() >= until_s:
                    return recalled
                await asyncio.sleep(LOOK_S)

    async def _first(
        self, exchange: Exchange, named: Idempotency, handler: Callable[[Exchange], Awaitable[None]]
    ) -> bool:
        """Whether it was; else another with this key came in between."""
        copy = _Copy(self.settings.max_answer_kb << 10)
        exchange.overhear(copy.hear)
        try:
            await handler(exchange)
            answer = copy.answer
        except RequestRefused as refused:
            if refused.code in TAKEN:
                exchange.told.clear()
                return False
            answer = Answered(refused.status, [(b"content-type", JSON)], [error_body(refused)])
            self._keep(exchange, named, answer)
            raise
        self._keep(exchange, named, answer)
        return True

    def _keep(self, exchange: Exchange, named: Idempotency, answer: Answered | None) -> None:
        """The books take it only from whom they gave the key."""
        if answer is not None and exchange.trail is not None and self.settings.max_answer_kb:
            self.desk.keep(named, exchange.trail.response_id, _out.encode(answer))


def _named(exchange: Exchange, identity: Identity, raw: bytes) -> Idempotency:
    key = exchange.sole(IDEMPOTENCY) or ""
    if len(key) > MAX_KEY:
        raise RequestRefused(f"an idempotency key has at most {MAX_KEY} characters", param=IDEMPOTENCY)
    owner = "/".join((identity.organization, identity.user, identity.agent, identity.key_id))
    digest = hashlib.sha256(exchange.path.encode() + b"\0" + raw).digest()
    return Idempotency(owner, key, digest, identity.organization)


async def _tell(exchange: Exchange, answer: Answered) -> None:
    exchange.told.append((b"idempotent-replayed", b"true"))
    if not answer.is_stream:
        headers: list[tuple[bytes, Any]] = [pair for pair in answer.headers if pair[0] != b"content-type"]
        await exchange.respond(answer.status, b"".join(answer.parts), headers=headers)
        return
    await exchange.start(answer.status, answer.headers)
    for part in answer.parts:
        await exchange.write(part, more=True)
    await exchange.write(b"", more=False)


def _is_ours(name: bytes) -> bool:
    return name.startswith(b"x-decodeloop-")
