"""A request that was answered before: told again, charged as cached."""

from __future__ import annotations

from dataclasses import dataclass, replace

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.answers import CACHE_POOL, AnswerCache, Kept, is_determined
from decodeloop.gateway.claims import claim_of_envelope
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.sessions import Settled, terms_of
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.sse import HEADERS as STREAM_HEADERS
from decodeloop.gateway.wire.envelope import Envelope, read_envelope
from decodeloop.gateway.wire.parse import Arrival
from decodeloop.governance.ledger import Outcome
from decodeloop.types import RequestRefused

__all__ = ["Again", "Memory"]

HEADER = "x-decodeloop-cache"
WHOLE = frozenset({"stop", "length", "tool_calls"})  # ends that would come again


@dataclass(frozen=True, slots=True)
class Memory:
    cache: AnswerCache
    admission: Admission
    fleet: Fleet
    limits: Limits

    def of(self, exchange: Exchange, raw: bytes, arrival: Arrival) -> Again | None:
        """None where its caller doesn't ask for it, or the answer isn't determined. Raises RequestRefused."""
        wish = exchange.header(HEADER)
        if wish is None:
            return None
        if wish != "use":
            raise RequestRefused(f"the header {HEADER} knows one value: use", param=HEADER)
        if not self.cache.enabled:
            return None
        envelope = read_envelope(raw, arrival.default_model, self.limits)
        if not is_determined(envelope):
            return None
        self.fleet.card(envelope.model)
        body = {**envelope.body, "model": envelope.model}
        key = self.cache.key(arrival.identity.organization, exchange.path, body)
        again = Again(self, exchange, raw, arrival, envelope, key)
        exchange.tape = []
        return again


@dataclass(frozen=True, slots=True)
class Again:
    memory: Memory
    exchange: Exchange
    raw: bytes
    arrival: Arrival
    envelope: Envelope
    key: bytes

    async def answered(self) -> bool:
        """Whether it was, from memory."""
        kept = self.memory.cache.get(self.key)
        if kept is None:
            self.exchange.told.append((HEADER.encode(), b"miss"))
            return False
        await self._tell(kept)
        return True

    async def _tell(self, kept: Kept) -> None:
        exchange, envelope = self.exchange, self.envelope
        exchange.tape = None
        exchange.tell(envelope.model, envelope.request_class, envelope.body)
        exchange.route_taken(CACHE_POOL, CACHE_POOL, "kept")
        claim, terms = claim_of_envelope(envelope, self.arrival), terms_of(exchange, self.raw)
        clerk = self.memory.admission.clerk
        clerk.rule(claim, terms)
        place = replace(kept.place, pool=CACHE_POOL, upstream=CACHE_POOL)
        ticket = await clerk.reserve(claim, place, terms)
        with Settled(ticket):
            ticket.count_piece(replace(kept.usage, cached=kept.usage.prompt, drafted=0, verified=0, accepted=0))
            ticket.settle(Outcome.COMPLETED)
            exchange.told += [
                (HEADER.encode(), b"hit"),
                (b"x-decodeloop-pool", CACHE_POOL.encode()),
                (b"x-decodeloop-route", b"kept"),
                *ticket.headers,
            ]
            parts = kept.said_as(self.arrival.id)
            if not kept.is_stream:
                await exchange.respond(200, parts[0])
                return
            await exchange.start(200, STREAM_HEADERS)
            for part in parts:
                await exchange.write(part, more=True)
            await exchange.write(b"", more=False)

    def keep(self) -> None:
        """What was just said, if it would be said again."""
        exchange, trail = self.exchange, self.exchange.trail
        if exchange.tape is None or trail is None or trail.times is None or trail.error is not None:
            return
        times = trail.times
        if times.usage is None or exchange.status != 200 or not WHOLE.issuperset(times.finish_reasons):
            return
        place = self.memory.fleet.pools[trail.pool].place(trail.upstream)
        stream = self.envelope.stream
        self.memory.cache.put(self.key, tuple(exchange.tape), times.usage, place, is_stream=stream)
