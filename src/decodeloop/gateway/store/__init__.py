"""Where reservations, counters, the ledger and the directory's records are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from decodeloop.governance.ledger import LedgerRow, Reservation
from decodeloop.governance.quota import Hold
from decodeloop.types import Usage

__all__ = [
    "SETTLING_S",
    "Books",
    "Idempotency",
    "Opening",
    "Recalled",
    "Record",
    "Records",
    "Refusal",
    "Reserved",
    "StoreUnavailable",
]

SETTLING_S = 5.0  # after a settlement, within which its answer is kept


class StoreUnavailable(Exception):
    """Nothing can be read or recorded now."""


class Refusal(StrEnum):
    LIMIT = "limit"
    IN_FLIGHT = "in_flight"  # its idempotency key's request is being answered
    USED = "used"  # its idempotency key's request was answered, and billed
    MISMATCH = "mismatch"  # its idempotency key belongs to another body


@dataclass(frozen=True, slots=True)
class Idempotency:
    """A client's name for one request: within `owner` it is billed once."""

    owner: str
    key: str
    digest: bytes  # of the body
    organization: str = ""  # whose room its answer takes


@dataclass(frozen=True, slots=True)
class Recalled:
    """What is known of an idempotency key. refusal None: it is free. answer: as it was kept, where refusal is USED.
    estimate: what its request was charged when its gateway died, with the answer (refusal is IN_FLIGHT)."""

    refusal: Refusal | None = None
    earlier: str = ""  # the request id that has the key
    answer: bytes | None = None
    estimate: LedgerRow | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    reservation: Reservation
    holds: tuple[Hold, ...]
    idempotency: Idempotency | None = None


@dataclass(frozen=True, slots=True)
class Reserved:
    """refusal None: it stands. used: by hold, what its counter held before; place: the hold that didn't fit."""

    used: tuple[int, ...] = ()
    refusal: Refusal | None = None
    place: int = 0
    earlier: str = ""  # the request id that has the idempotency key


@dataclass(frozen=True, slots=True)
class Record:
    """A key, grant, limit or other part of the directory, as it is stored. kind and id are unique together."""

    kind: str
    id: str
    body: str  # JSON


class Books(Protocol):
    """Counters and ledger. Whatever returns has been recorded; any number of gateways may share one."""

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Write what is queued, and stop."""
        ...

    async def reserve(self, opening: Opening) -> Reserved:
        """Check all holds and add them, indivisibly. Raises StoreUnavailable."""
        ...

    async def extend(self, reservation: Reservation, holds: tuple[Hold, ...]) -> Reserved:
        """Replace a reservation and its holds by larger ones of the same counters, if the differences fit."""
        ...

    async def recall(self, named: Idempotency) -> Recalled:
        """Raises StoreUnavailable."""
        ...

    def keep(self, named: Idempotency, request_id: str, answer: bytes) -> None:
        """What the request that has the key was answered; nothing where it hasn't, or hasn't any more. Queued; may be
        dropped."""
        ...

    def checkpoint(self, usages: Sequence[tuple[str, Usage]]) -> None:
        """What open requests have used so far: a recovery charges this. Queued; may be dropped."""
        ...

    def settle(self, row: LedgerRow) -> None:
        """Close a reservation: its row to the ledger, its holds to what it used. Queued, never dropped.

        Once only: for a request whose estimate is in the ledger already the difference is entered, otherwise a second
        call does nothing.
        """
        ...

    async def flush(self) -> None:
        """Until everything queued before is recorded."""
        ...

    async def rows(self, since_s: float, until_s: float) -> Sequence[LedgerRow]:
        """Ledger rows that ended in that time, oldest first."""
        ...

    async def open(self) -> Sequence[tuple[Reservation, tuple[Hold, ...]]]:
        """All open reservations."""
        ...

    async def used(self, counters: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        """By (counter, oldest slice): what it holds, reservations included."""
        ...


class Records(Protocol):
    """The directory's records. `revision` grows with every change."""

    async def revision(self) -> int: ...

    async def read(self) -> Sequence[Record]: ...

    async def put(self, record: Record) -> None: ...

    async def remove(self, kind: str, id: str) -> bool:
        """Whether there was one."""
        ...
