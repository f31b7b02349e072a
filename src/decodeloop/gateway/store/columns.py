"""A ledger row as columns, one list for every database and export."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from decodeloop.governance.ledger import LedgerRow, Outcome, Reservation, Timings
from decodeloop.governance.price import Price
from decodeloop.governance.quota import Hold, Unit
from decodeloop.types import Identity, Usage

__all__ = [
    "ADDED",
    "COLUMNS",
    "NAMES",
    "from_values",
    "holds_json",
    "read_holds",
    "read_reservation",
    "reservation_json",
    "values",
]

Read = Callable[[LedgerRow], Any]

COLUMNS: tuple[tuple[str, str, Read], ...] = (
    ("request_id", "text", lambda row: row.request_id),
    ("entry", "integer", lambda row: row.entry),
    ("organization", "text", lambda row: row.identity.organization),
    ("user_name", "text", lambda row: row.identity.user),
    ("agent", "text", lambda row: row.identity.agent),
    ("capability", "text", lambda row: row.identity.capability),
    ("key_id", "text", lambda row: row.identity.key_id),
    ("model", "text", lambda row: row.model),
    ("request_class", "text", lambda row: row.request_class),
    ("task", "text", lambda row: row.task),
    ("trace", "text", lambda row: row.trace),
    ("pool", "text", lambda row: row.pool),
    ("upstream", "text", lambda row: row.upstream),
    ("regime", "text", lambda row: row.regime),
    ("started_s", "double precision", lambda row: row.started_s),
    ("ended_s", "double precision", lambda row: row.ended_s),
    ("outcome", "text", lambda row: row.outcome.value),
    ("prompt_tokens", "bigint", lambda row: row.usage.prompt),
    ("cached_tokens", "bigint", lambda row: row.usage.cached),
    ("completion_tokens", "bigint", lambda row: row.usage.completion),
    ("drafted_tokens", "bigint", lambda row: row.usage.drafted),
    ("verified_tokens", "bigint", lambda row: row.usage.verified),
    ("accepted_tokens", "bigint", lambda row: row.usage.accepted),
    ("queue_ms", "double precision", lambda row: row.timings.queue_ms),
    ("prefill_ms", "double precision", lambda row: row.timings.prefill_ms),
    ("draft_ms", "double precision", lambda row: row.timings.draft_ms),
    ("verify_ms", "double precision", lambda row: row.timings.verify_ms),
    ("sample_ms", "double precision", lambda row: row.timings.sample_ms),
    ("overhead_ms", "double precision", lambda row: row.timings.overhead_ms),
    ("prompt_price", "double precision", lambda row: row.price.prompt),
    ("cached_price", "double precision", lambda row: row.price.cached),
    ("completion_price", "double precision", lambda row: row.price.completion),
    ("second_cost", "double precision", lambda row: row.price.second_cost),
    ("billed_nanos", "bigint", lambda row: row.billed),
    ("cost_nanos", "bigint", lambda row: row.cost),
    ("asked_model", "text", lambda row: row.asked_model),
    ("losslessness", "text", lambda row: row.losslessness),
    ("certificate", "text", lambda row: row.certificate),
)

ADDED = ("asked_model", "losslessness", "certificate")  # texts that older ledgers lack

NAMES = tuple(name for name, _, _ in COLUMNS)
_READS = tuple(read for _, _, read in COLUMNS)

_UNITS = {unit.value: unit for unit in Unit}
_holds_out = msgspec.json.Encoder()
_holds_in = msgspec.json.Decoder(tuple[tuple[str, int, int, int, int, str, float], ...])
_reservation_in = msgspec.json.Decoder(Reservation)


def values(row: LedgerRow) -> tuple[Any, ...]:
    return tuple(read(row) for read in _READS)


def from_values(got: Sequence[Any]) -> LedgerRow:
    """The row whose `values` are `got`."""
    return LedgerRow(
        request_id=got[0],
        entry=got[1],
        identity=Identity(*got[2:7]),
        model=got[7],
        request_class=got[8],
        task=got[9],
        trace=got[10],
        pool=got[11],
        upstream=got[12],
        regime=got[13],
        started_s=got[14],
        ended_s=got[15],
        outcome=Outcome(got[16]),
        usage=Usage(*got[17:23]),
        timings=Timings(*got[23:29]),
        price=Price(*got[29:33]),
        billed=got[33],
        cost=got[34],
        asked_model=got[35],
        losslessness=got[36],
        certificate=got[37],
    )


def holds_json(holds: Sequence[Hold]) -> str:
    return _holds_out.encode(
        [(h.counter, h.slice, h.oldest, h.cap, h.amount, h.unit.value, h.until_s) for h in holds]
    ).decode()


def read_holds(text: str) -> tuple[Hold, ...]:
    return tuple(Hold(*got[:5], _UNITS[got[5]], got[6]) for got in _holds_in.decode(text))


def reservation_json(reservation: Reservation) -> str:
    return _holds_out.encode(reservation).decode()


def read_reservation(text: str) -> Reservation:
    return _reservation_in.decode(text)
