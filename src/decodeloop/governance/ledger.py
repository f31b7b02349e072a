"""One row a request: who asked what, where it ran, what it took and what it is billed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from decodeloop.governance.price import Charge, Price
from decodeloop.types import Identity, Usage

__all__ = [
    "LedgerRow",
    "Outcome",
    "Reservation",
    "Timings",
    "bound_charge",
    "charge_of",
    "correction",
    "estimated",
    "marked",
    "with_checkpoint",
]


class Outcome(StrEnum):
    COMPLETED = "completed"
    CANCELLED = "cancelled"  # the client left
    FAILED = "failed"
    ESTIMATED = "estimated"  # its gateway died: charged what was last known, or all that was reserved
    CORRECTION = "correction"  # of an estimate: the difference to what it really was


@dataclass(frozen=True, slots=True)
class Timings:
    """The request's share of its steps, in ms."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    overhead_ms: float = 0.0

    @property
    def machine_ms(self) -> float:
        """All but waiting."""
        return self.prefill_ms + self.draft_ms + self.verify_ms + self.sample_ms + self.overhead_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """Append-only: (request_id, entry) is unique, and a later entry corrects the sum. Money in nanos."""

    request_id: str
    entry: int = 0
    identity: Identity = Identity()
    model: str = ""
    request_class: str = ""
    task: str = ""  # session or trace: what several requests are part of
    trace: str = ""
    pool: str = ""
    upstream: str = ""
    regime: str = ""
    started_s: float = 0.0  # Unix time
    ended_s: float = 0.0
    outcome: Outcome = Outcome.COMPLETED
    usage: Usage = Usage()
    timings: Timings = Timings()
    price: Price = Price()
    billed: int = 0
    cost: int = 0
    asked_model: str = ""  # the alias that `model` answered for
    losslessness: str = ""  # of the pool, then
    certificate: str = ""

    @property
    def margin(self) -> int:
        return self.billed - self.cost


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservation:
    """What an open request may still cost. row: its ledger row so far, all that a recovery needs; bound: the most it
    can use; known: whether row.usage was reported since (a checkpoint)."""

    row: LedgerRow
    bound: Usage
    known: bool = False

    @property
    def id(self) -> str:
        return self.row.request_id


def marked(reservation: Reservation, usage: Usage) -> Reservation:
    """With a checkpoint: what it has used so far."""
    return replace(reservation, row=replace(reservation.row, usage=usage), known=True)


def with_checkpoint(new: Reservation, old: Reservation) -> Reservation:
    """`new` with the checkpoint of `old`, if it has one."""
    return marked(new, old.row.usage) if old.known else new


def charge_of(price: Price, usage: Usage) -> Charge:
    return Charge(requests=1, tokens=usage.prompt + usage.completion, nanos=price.of(usage))


def bound_charge(price: Price, bound: Usage) -> Charge:
    """No usage within `bound` is charged more."""
    return Charge(requests=1, tokens=bound.prompt + bound.completion, nanos=price.at_most(bound))


def estimated(reservation: Reservation, now_s: float) -> LedgerRow:
    """What a request is charged whose gateway is gone: its last checkpoint, else all that it reserved."""
    usage = reservation.row.usage if reservation.known else reservation.bound
    return replace(
        reservation.row,
        outcome=Outcome.ESTIMATED,
        ended_s=now_s,
        usage=usage,
        billed=reservation.row.price.of(usage),
    )


def correction(estimate: LedgerRow, actual: LedgerRow, entry: int) -> LedgerRow:
    """The entry that makes an estimate's sum what it really was."""
    used, assumed = actual.usage, estimate.usage
    return replace(
        actual,
        entry=entry,
        outcome=Outcome.CORRECTION,
        usage=Usage(
            used.prompt - assumed.prompt,
            used.cached - assumed.cached,
            used.completion - assumed.completion,
            used.drafted - assumed.drafted,
            used.verified - assumed.verified,
            used.accepted - assumed.accepted,
        ),
        billed=actual.billed - estimate.billed,
        cost=actual.cost - estimate.cost,
    )
