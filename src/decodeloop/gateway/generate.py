"""POST /v1/completions and /v1/chat/completions: from a body to the last byte of its answer."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass

from decodeloop.gateway.admission import Admission, Exhausted, Terms, Ticket
from decodeloop.gateway.again import Memory
from decodeloop.gateway.aliases import Aliases
from decodeloop.gateway.claims import Claim, claim_of_call, claim_of_envelope
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Asked, Fleet
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.ids import random_id
from decodeloop.gateway.meter import Meter, RequestMeter
from decodeloop.gateway.pools import Lease
from decodeloop.gateway.relay import Relay
from decodeloop.gateway.sessions import Settled, asked_by, place_of, slo_of, terms_of
from decodeloop.gateway.settings import GatewaySettings, Limits
from decodeloop.gateway.sse import EventStream
from decodeloop.gateway.tasks import TimeLimit, answer_chunks
from decodeloop.gateway.telemetry import Trail, asked_of
from decodeloop.gateway.upstreams import Upstream
from decodeloop.gateway.wire.answer import Answer
from decodeloop.gateway.wire.envelope import Envelope, read_envelope
from decodeloop.gateway.wire.events import AnswerReader
from decodeloop.gateway.wire.parse import Arrival, Call, Classify, parse_chat, parse_completion, unclassified
from decodeloop.gateway.wire.shapes import ChatShape, CompletionShape, Shape
from decodeloop.governance.capability import Ruling
from decodeloop.governance.ledger import Outcome
from decodeloop.types import Chunk, RequestRefused
from decodeloop.types.routing import Route, RouteRequest

__all__ = ["CHAT", "COMPLETION", "Api", "Generate"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Api:
    """What tells the two apart."""

    operation: str  # OpenTelemetry's name
    id_prefix: str
    parse: Callable[[bytes, Arrival, Limits], Call]
    shape: Callable[[bool], Shape]


COMPLETION = Api("text_completion", "cmpl-", parse_completion, lambda logprobs: CompletionShape(logprobs=logprobs))
CHAT = Api("chat", "chatcmpl-", parse_chat, lambda logprobs: ChatShape(logprobs=logprobs))


@dataclass(frozen=True, slots=True)
class Case:
    """A call, what it asks of governance, and what it may."""

    call: Call
    claim: Claim
    terms: Terms
    ruling: Ruling


@dataclass(frozen=True, slots=True)
class Generate:
    """The handler of one of the APIs."""

    api: Api
    settings: GatewaySettings
    authenticator: Authenticator
    admission: Admission
    fleet: Fleet
    meter: Meter
    memory: Memory
    aliases: Aliases
    classify: Classify = unclassified

    async def __call__(self, exchange: Exchange) -> None:
        identity = exchange.vouched or self.authenticator.identify(exchange)
        with self.admission.admitted():
            raw = await exchange.read_json(self.settings.limits)
            arrival = Arrival(
                id=self.api.id_prefix + random_id(),
                default_model=self.fleet.default_model(),
                identity=identity,
                slo=slo_of(exchange),
                arrived_s=exchange.arrived_s,
                classify=self.classify,
            )
            exchange.trail = Trail(
                operation=self.api.operation,
                response_id=arrival.id,
                identity=identity,
                task=exchange.header("x-session-id") or "",
            )
            raw = self.aliases.resolved(exchange, raw, arrival)
            again = self.memory.of(exchange, raw, arrival)
            if again is not None and await again.answered():
                return
            if self.fleet.relays:
                await self._routed(exchange, raw, arrival)
            else:
                case = self._case(exchange, raw, self.api.parse(raw, arrival, self.settings.limits))
                route, lease = self.fleet.choose(_asked(case))
                with lease:
                    await self._own(exchange, case, route, lease)
            if again is not None:
                again.keep()

    async def _routed(self, exchange: Exchange, raw: bytes, arrival: Arrival) -> None:
        """Who answers decides how much of the body must be understood here."""
        limits = self.settings.limits
        envelope = read_envelope(raw, arrival.default_model, limits, arrival.classify)
        exchange.tell(envelope.model, envelope.request_class, envelope.body)
        claim, terms = claim_of_envelope(envelope, arrival), terms_of(exchange, raw)
        ruling = self.admission.clerk.rule(claim, terms)
        asked = asked_by(envelope, ruling, terms, arrival.slo)
        route, lease = self.fleet.choose(asked)
        with lease:
            if lease.member.relay is not None:
                ticket = await self.admission.clerk.reserve(claim, place_of(lease), terms)
                with Settled(ticket):
                    _tell(exchange, route, lease, ticket)
                    await self._elsewhere(exchange, envelope, asked, lease, ticket)
            else:
                case = self._case(exchange, raw, self.api.parse(raw, arrival, limits))
                await self._own(exchange, case, route, lease)

    def _case(self, exchange: Exchange, raw: bytes, call: Call) -> Case:
        first = call.requests[0]
        exchange.tell(call.model, first.request_class, {"seed": first.seed, **asked_of(first.params)})
        claim, terms = claim_of_call(call), terms_of(exchange, raw)
        ruling = self.admission.clerk.rule(claim, terms)
        return Case(call.ruled(ruling.speculation), claim, terms, ruling)

    async def _elsewhere(
        self, exchange: Exchange, envelope: Envelope, asked: Asked, lease: Lease, ticket: Ticket
    ) -> None:
        """Answered by another server, which reads the body by itself."""
        name = lease.member.name
        timing = self.meter.request(name, envelope.model, arrived_s=exchange.arrived_s, choices=envelope.choices)
        clock = self.meter.clock
        relay = Relay(exchange, envelope, asked, self.fleet, timing, clock, self.settings, AnswerReader(), ticket)
        exchange.time(timing.times)
        with timing:
            await relay.run(lease)

    async def _own(self, exchange: Exchange, case: Case, route: Route, lease: Lease) -> None:
        ticket = await self.admission.clerk.reserve(case.claim, place_of(lease), case.terms)
        with Settled(ticket):
            _tell(exchange, route, lease, ticket)
            await self._answered(exchange, case.call.ruled(ticket.ruling.speculation), lease, ticket)

    async def _answered(self, exchange: Exchange, call: Call, lease: Lease, ticket: Ticket) -> None:
        """By an engine that takes requests in our own terms."""
        upstream = lease.member.own
        assert upstream is not None, "it reads bodies by itself"
        call = call.in_regime(lease.pool.settings.regime)
        answer = Answer(call, self.api.shape(call.logprobs), created=int(time.time()))
        name = lease.member.name
        timing = self.meter.request(name, call.model, arrived_s=exchange.arrived_s, choices=call.choices)
        run = Run(exchange, call, upstream, answer, timing, self.meter.clock, self.settings, ticket)
        exchange.time(timing.times)
        with timing:
            try:
                await (run.streamed() if call.stream else run.whole())
                lease.member.heard(timing.times.ttft_s, self.meter.clock())
                lease.succeeded()
            except RequestRefused as refused:
                lease.failed() if refused.status >= 500 else lease.succeeded()
                raise


@dataclass(frozen=True, slots=True)
class Run:
    """One answer on its way."""

    exchange: Exchange
    call: Call
    upstream: Upstream
    answer: Answer
    timing: RequestMeter
    clock: Callable[[], float]
    settings: GatewaySettings
    ticket: Ticket

    async def whole(self) -> None:
        chunks: list[Chunk] = []

        async def collect(chunk: Chunk) -> None:
            chunks.append(chunk)

        await self.exchange.while_there(self._each(collect))
        await self.exchange.respond(200, self.answer.body(chunks))

    async def streamed(self) -> None:
        stream = EventStream(self.exchange, heartbeat_s=self.settings.heartbeat_s)

        async def say(chunk: Chunk) -> None:
            events = self.answer.events(chunk)
            if events:
                await stream.write(events)

        async def work() -> None:
            await self._each(say)
            await stream.end(self.answer.last_events())

        await stream.carry(work())

    async def _each(self, use: Callable[[Chunk], Awaitable[None]]) -> None:
        """Give every chunk to `use`, in order, the next one only when it returns."""
        try:
            with TimeLimit(self.settings.limits.request_timeout_s):
                async with aclosing(self._chunks()) as chunks:
                    async for chunk in chunks:
                        self.ticket.count(chunk)
                        self.timing.chunk(chunk, self.clock())
                        await use(self.answer.admit(chunk))
                        await self.ticket.keep()
        except Exhausted as exhausted:
            self.exchange.tape = None  # others may afford all of it
            for chunk in self.answer.cut(exhausted.usage):
                await use(self.answer.admit(chunk))
        self.answer.check_complete()
        self.ticket.settle(Outcome.COMPLETED)

    def _chunks(self) -> AsyncGenerator[Chunk, None]:
        return answer_chunks(self.upstream, self.call.requests)


def _asked(case: Case) -> Asked:
    first = case.call.requests[0]
    return Asked(
        model=case.call.model,
        route=RouteRequest(
            request_class=first.request_class,
            speculation=first.speculation,
            pool=case.terms.pool,
            may_choose=case.ruling.choose_pool,
        ),
        ttft_ms=first.slo.ttft_ms,
    )


def _tell(exchange: Exchange, route: Route, lease: Lease, ticket: Ticket) -> None:
    exchange.route_taken(lease.pool.name, lease.member.name, route.reason.value)
    exchange.told += [
        (b"x-decodeloop-pool", lease.pool.name.encode()),
        (b"x-decodeloop-route", route.reason.value.encode()),
        *ticket.headers,
    ]
    if ticket.ruling.denials:
        exchange.told.append((b"x-decodeloop-denied", ticket.ruling.explanation.encode("ascii", "replace")))
