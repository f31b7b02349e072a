"""A request that another server answers: sent on, its answer passed back as it comes."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any

import orjson
from msgspec import Struct

from decodeloop.gateway.admission import Exhausted, Ticket
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Asked, Fleet
from decodeloop.gateway.meter import RequestMeter
from decodeloop.gateway.pools import Lease
from decodeloop.gateway.sessions import place_of
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.sse import EventStream
from decodeloop.gateway.tasks import TimeLimit
from decodeloop.gateway.upstreams import RelayAnswer, UpstreamFailed
from decodeloop.gateway.wire.answer import DONE as DONE_EVENT
from decodeloop.gateway.wire.answer import event
from decodeloop.gateway.wire.envelope import Envelope
from decodeloop.gateway.wire.events import AnswerReader, EventCutter, EventTooLarge, event_data
from decodeloop.governance.ledger import Outcome
from decodeloop.types import RequestRefused

__all__ = ["Relay"]

log = logging.getLogger(__name__)

ATTEMPTS = 3  # servers that a request is tried on, until one begins to answer
MAX_ERROR_BYTES = 64 * 2**10
MAX_ANSWER_BYTES = 64 * 2**20
DONE = b"[DONE]"
BUSY = (429, 503, 529)

PassOn = Callable[[RelayAnswer], Awaitable[None]]


class Relay(Struct, frozen=True):
    """exchange: whose path is the other server's too."""

    exchange: Exchange
    envelope: Envelope
    asked: Asked
    fleet: Fleet
    timing: RequestMeter
    clock: Callable[[], float]
    settings: GatewaySettings
    reader: AnswerReader
    ticket: Ticket

    async def run(self, first: Lease) -> None:
        """From the first server's lease to the answer's last byte.

        Raises:
            RequestRefused: no server answered, or the one that did refuses the request; nothing was sent yet.
            ClientGone: the client left; the server has been told by a closed connection.
        """
        if not self.envelope.stream:
            await self.exchange.while_there(self._attempts(first, self._whole, said=lambda: False))
            return
        stream = EventStream(self.exchange, heartbeat_s=self.settings.heartbeat_s)

        async def pass_on(answer: RelayAnswer) -> None:
            await self._streamed(answer, stream)

        await stream.carry(self._attempts(first, pass_on, said=lambda: stream.said))

    async def _attempts(self, lease: Lease, pass_on: PassOn, *, said: Callable[[], bool]) -> None:
        tried: list[str] = []
        with TimeLimit(self.settings.limits.request_timeout_s):
            while True:
                tried.append(lease.member.name)
                with lease:
                    refused = await self._attempt(lease, pass_on)
                if refused is None:
                    return
                if len(tried) == ATTEMPTS or said():
                    raise refused
                lease = await self._moved(tried, refused)

    async def _moved(self, tried: Sequence[str], refused: RequestRefused) -> Lease:
        """To a server that wasn't tried; where there is none, `refused` is raised."""
        try:
            _, lease = self.fleet.choose(self.asked, tried)
        except RequestRefused:
            raise refused from None
        await self.ticket.move(place_of(lease))
        log.warning("request %s goes on to %s: %s", self.exchange.request_id, lease.member.name, refused.message)
        return lease

    async def _attempt(self, lease: Lease, pass_on: PassOn) -> RequestRefused | None:
        """None: answered. What is returned, another server may do better; what is raised, none would."""
        upstream = lease.member.relay
        assert upstream is not None, "it takes requests in our own terms"
        try:
            async with upstream.ask(self.exchange.path, self._body(), self._trace()) as answer:
                if answer.status != 200:
                    return await self._unanswered(lease, answer)
                await pass_on(answer)
            if self.envelope.stream:
                lease.member.heard(self.timing.times.ttft_s, self.clock())
            lease.succeeded()
        except UpstreamFailed as failed:
            lease.failed()
            return RequestRefused(str(failed), status=502, code="upstream_failed")
        except EventTooLarge:
            lease.failed()
            return RequestRefused(f"upstream {lease.member.name} sent no end of an event", status=502)
        return None

    def _body(self) -> Mapping[str, Any]:
        """A whole answer can't be counted as it is made: where it is limited, it is capped beforehand."""
        body, cap = self.envelope.body, self.ticket.cap
        if self.envelope.stream or cap is None:
            return body
        self.exchange.tape = None
        return {**body, "max_tokens": cap}

    async def _unanswered(self, lease: Lease, answer: RelayAnswer) -> RequestRefused | None:
        said = await _gathered(answer, MAX_ERROR_BYTES)
        refused = _refusal(answer.status, said, lease.member.name)
        if answer.status in BUSY:
            lease.full(answer.retry_after_s)
            return refused
        if answer.status < 400 or answer.status >= 500 or answer.status in (401, 403, 404, 408):
            lease.failed()
            return refused
        lease.succeeded()
        raise refused

    async def _whole(self, answer: RelayAnswer) -> None:
        body = await _gathered(answer, MAX_ANSWER_BYTES)
        told = self.reader.read(body)
        if told.error is not None:
            raise UpstreamFailed(_message(told.error) or "the upstream answered with an error")
        if self.reader.usage is not None:
            self.timing.relayed_usage(self.reader.usage)
        self.timing.relayed(told, self.clock())
        self.ticket.count_piece(self.reader.usage)
        self.ticket.hear(body)
        self.ticket.settle(Outcome.COMPLETED)
        await self.exchange.respond(200, body)

    async def _streamed(self, answer: RelayAnswer, stream: EventStream) -> None:
        cutter, has_ended = EventCutter(), False

        def take(piece: bytes) -> Coroutine[Any, Any, bool] | None:
            passed, ends = [], False
            for whole in cutter.feed(piece):
                data = event_data(whole)
                ends = ends or data == DONE
                if data is None or self._is_shown(data):
                    passed.append(whole)
            if ends:
                return end(b"".join(passed))
            if not passed or (not self.ticket.is_short() and stream.write_now(b"".join(passed))):
                return None
            return keep(b"".join(passed))

        async def keep(events: bytes) -> bool:
            await stream.write(events)
            try:
                await self.ticket.keep()
            except Exhausted:
                self.exchange.tape = None  # others may afford all of it
                return await end(self._cut_short())
            return False

        async def end(events: bytes) -> bool:
            nonlocal has_ended
            has_ended = True
            if self.reader.usage is not None:
                self.timing.relayed_usage(self.reader.usage)
            self.ticket.settle(Outcome.COMPLETED)
            await stream.end(events)
            return True

        await answer.each(take)
        if not has_ended:
            raise UpstreamFailed("the upstream ended its answer early")

    def _cut_short(self) -> bytes:
        """The end of an answer for which there is no more to spend."""
        choice = {"index": 0, "delta": {}, "text": "", "finish_reason": "length"}
        return event({"choices": [choice], "model": self.envelope.model}) + DONE_EVENT

    def _is_shown(self, data: bytes) -> bool:
        """Takes note of an event, and tells whether the client asked for it."""
        if data == DONE:
            return True
        told = self.reader.read(data)
        if told.error is not None:
            raise UpstreamFailed(_message(told.error) or "the upstream failed")
        self.timing.relayed(told, self.clock())
        if told.content:
            self.ticket.hear(data)
        if told.content or self.reader.usage is not None:
            self.ticket.count_piece(self.reader.usage)
        return self.envelope.include_usage or not told.usage_only

    def _trace(self) -> dict[str, str]:
        trace = self.exchange.traceparent()
        own = {"x-request-id": self.exchange.request_id}
        return own if trace is None else {**own, "traceparent": trace}


async def _gathered(answer: RelayAnswer, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0

    def take(piece: bytes) -> None:
        nonlocal size
        size += len(piece)
        if size > most:
            raise UpstreamFailed(f"the upstream's answer is larger than {most} bytes")
        parts.append(piece)

    await answer.each(take)
    return b"".join(parts)


def _refusal(status: int, said: bytes, upstream: str) -> RequestRefused:
    """Another server's error in our shape. Its trouble with our own key or path is ours, not the caller's."""
    try:
        told = orjson.loads(said)
    except orjson.JSONDecodeError:
        told = {}
    error = told.get("error", told) if isinstance(told, dict) else {}
    error = error if isinstance(error, dict) else {"message": str(error)}
    if status in (401, 403, 404):
        return RequestRefused(
            f"upstream {upstream} refuses the gateway ({status})", status=502, code="upstream_refused"
        )
    if status < 400 or (status >= 500 and status not in BUSY):
        return RequestRefused(f"upstream {upstream} failed ({status})", status=502, code="upstream_failed")
    code, param = error.get("code"), error.get("param")
    return RequestRefused(
        _message(error) or f"upstream {upstream} refused the request ({status})",
        status=503 if status == 529 else status,
        param=param if isinstance(param, str) else None,
        code=code if isinstance(code, str) else None,
    )


def _message(error: Any) -> str:
    return str(error.get("message") or error.get("detail") or "")[:2000]
