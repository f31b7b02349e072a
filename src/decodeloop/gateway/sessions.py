"""A request between HTTP and governance: what it says of itself, where it runs, how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from decodeloop.gateway.admission import Terms, Ticket
from decodeloop.gateway.exchange import ClientGone, Exchange
from decodeloop.gateway.fleet import Asked
from decodeloop.gateway.pools import Lease
from decodeloop.gateway.wire.envelope import Envelope
from decodeloop.governance.capability import Place, Ruling
from decodeloop.governance.ledger import Outcome
from decodeloop.types import RequestRefused, Slo
from decodeloop.types.routing import RouteRequest

__all__ = ["Settled", "asked_by", "place_of", "slo_of", "terms_of"]

POOL = "x-decodeloop-pool"
CONSENT = "x-decodeloop-capture"
MAX_NAME = 255

_NO_SLO = Slo()


def terms_of(exchange: Exchange, raw: bytes) -> Terms:
    """raw: its body. Raises RequestRefused for headers that make no sense."""
    consent = exchange.header(CONSENT)
    if consent not in (None, "consent"):
        raise RequestRefused(f"the header {CONSENT} knows one value: consent", param=CONSENT)
    trace = exchange.traceparent()
    return Terms(
        pool=exchange.sole(POOL),
        task=(exchange.header("x-session-id") or "")[:MAX_NAME],
        trace="" if trace is None else trace.split("-")[1],
        named=exchange.named,
        aliased=exchange.aliased,
        consent=consent is not None,
        body=b"" if consent is None else raw,
    )


def place_of(lease: Lease) -> Place:
    return lease.pool.place(lease.member.name)


def asked_by(envelope: Envelope, ruling: Ruling, terms: Terms, slo: Slo) -> Asked:
    """What the choice of a server depends on, of a body that may be another server's to read."""
    return Asked(
        model=envelope.model,
        route=RouteRequest(
            request_class=envelope.request_class,
            speculation=ruling.speculation,
            pool=terms.pool,
            may_choose=ruling.choose_pool,
        ),
        fields=envelope.asked,
        prefix=envelope.prefix,
        ttft_ms=slo.ttft_ms,
    )


@dataclass(frozen=True, slots=True)
class Settled:
    """Whatever was not settled as complete inside was cancelled by its client, or has failed."""

    ticket: Ticket

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        is_cancelled = kind is not None and issubclass(kind, ClientGone | asyncio.CancelledError)
        self.ticket.settle(Outcome.CANCELLED if is_cancelled else Outcome.FAILED)


def slo_of(exchange: Exchange) -> Slo:
    """Raises RequestRefused for headers that are no times."""
    ttft_ms, tpot_ms = _milliseconds(exchange, "x-slo-ttft-ms"), _milliseconds(exchange, "x-slo-tpot-ms")
    return _NO_SLO if ttft_ms is tpot_ms is None else Slo(ttft_ms, tpot_ms)


def _milliseconds(exchange: Exchange, header: str) -> float | None:
    text = exchange.header(header)
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise RequestRefused(f"the header {header} must be a positive number of milliseconds", param=header)
    return value
