"""A request between HTTP and governance: what it says of itself, where it runs, how it ends."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from decodeloop.gateway.admission import Terms, Ticket
from decodeloop.gateway.exchange import ClientGone, Exchange
from decodeloop.gateway.pools import Lease
from decodeloop.governance.capability import Place
from decodeloop.governance.ledger import Outcome
from decodeloop.types import RequestRefused

__all__ = ["Settled", "place_of", "terms_of"]

POOL = "x-decodeloop-pool"
CONSENT = "x-decodeloop-capture"
MAX_NAME = 255


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


@dataclass(frozen=True, slots=True)
class Settled:
    """Whatever was not settled as complete inside was cancelled by its client, or has failed."""

    ticket: Ticket

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        is_cancelled = kind is not None and issubclass(kind, ClientGone | asyncio.CancelledError)
        self.ticket.settle(Outcome.CANCELLED if is_cancelled else Outcome.FAILED)
