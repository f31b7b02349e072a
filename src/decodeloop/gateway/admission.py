"""Whether a request may run, and what it may cost: the contract between the routes and governance.

A route asks in this order: `admitted` (is there room), `rule` (what may it), and once a server is chosen `reserve` (may
it there, and can it be paid); then `Ticket.count` and `Ticket.keep` for every chunk, and `Ticket.settle` once, whatever
happens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from decodeloop.gateway.claims import Claim
from decodeloop.gateway.errors import shutting_down
from decodeloop.gateway.store import Idempotency
from decodeloop.governance.capability import Place, Ruling
from decodeloop.governance.ledger import Outcome
from decodeloop.types import Chunk, Identity, RequestRefused, Usage

__all__ = ["Admission", "Aliased", "Clerk", "Exhausted", "OpenClerk", "Terms", "Ticket"]

Headers = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Aliased:
    """Which model answers for an alias, and why. smaller: it is not the one that the alias stands for."""

    asked: str
    model: str
    why: str
    smaller: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a request says about itself beside its body. pool: the one that it names; task: its session. aliased: what
    was made of the model that it names."""

    pool: str | None = None
    task: str = ""
    trace: str = ""
    named: Idempotency | None = None
    aliased: Aliased | None = None
    consent: bool = False  # its sender lets its content be kept, where that is granted
    body: bytes = b""  # where its sender consents


class Exhausted(Exception):
    """What was reserved is used up and there is no more: the answer ends here, for length.

    usage: what it has used.
    """

    def __init__(self, usage: Usage) -> None:
        super().__init__("what was reserved is used up")
        self.usage = usage


class Ticket(Protocol):
    """One admitted HTTP request, from reservation to settlement."""

    @property
    def ruling(self) -> Ruling:
        """What it may; its denials: what it asked and runs without."""
        ...

    @property
    def headers(self) -> Headers:
        """For the answer: what is left of the limits."""
        ...

    @property
    def cap(self) -> int | None:
        """Tokens that a choice may have at most where they can't be counted as they come; None: what it asked."""
        ...

    async def move(self, place: Place) -> None:
        """It runs elsewhere, before any chunk came. Raises RequestRefused where it may not."""
        ...

    def count(self, chunk: Chunk) -> None:
        """What a chunk used, before it is delivered. `chunk.usage` is final where `chunk.report` is set."""
        ...

    def count_piece(self, usage: Usage | None) -> None:
        """A piece of another engine's answer, which doesn't say how many tokens it holds; usage: of all so far, where
        it was told."""
        ...

    def hear(self, data: bytes) -> None:
        """What another engine answers, an event's data or all of it: kept where that is granted and consented."""
        ...

    def is_short(self) -> bool:
        """Whether what was counted needs more than is reserved."""
        ...

    async def keep(self) -> None:
        """Reserve more, where it is short. Raises Exhausted."""
        ...

    def settle(self, outcome: Outcome) -> None:
        """Charge what was counted and release the rest. Never waits, never raises; only the first call counts."""
        ...


class Clerk(Protocol):
    def rule(self, claim: Claim, terms: Terms) -> Ruling:
        """What it may wherever it runs: for the router. Raises RequestRefused with 403 where it may not run."""
        ...

    def denied_smaller(self, identity: Identity, asked: str, model: str) -> str | None:
        """Why `model` may not answer for the alias `asked`; None: it may."""
        ...

    async def reserve(self, claim: Claim, place: Place, terms: Terms) -> Ticket:
        """What makes it admissible at `place`, durable before this returns.

        Raises:
            RequestRefused: 403 not granted, 409 an idempotency key in use, 429 out of budget or over a rate,
                503 where nothing can be recorded.
        """
        ...


class OpenClerk:
    """Nothing is limited, nothing is recorded."""

    def __init__(self) -> None:
        self._last = _OpenTicket(Ruling(allowed=True, choose_pool=True))  # most requests ask the same of speculation

    def rule(self, claim: Claim, terms: Terms) -> Ruling:
        return self._ticket(claim).ruling

    def denied_smaller(self, identity: Identity, asked: str, model: str) -> str | None:
        return None

    async def reserve(self, claim: Claim, place: Place, terms: Terms) -> Ticket:
        return self._ticket(claim)

    def _ticket(self, claim: Claim) -> _OpenTicket:
        if self._last.ruling.speculation is not claim.speculation:
            self._last = _OpenTicket(Ruling(allowed=True, speculation=claim.speculation, choose_pool=True))
        return self._last


@dataclass(frozen=True, slots=True)
class _OpenTicket:
    ruling: Ruling
    headers: Headers = ()
    cap: int | None = None

    async def move(self, place: Place) -> None:
        pass

    def count(self, chunk: Chunk) -> None:
        pass

    def count_piece(self, usage: Usage | None) -> None:
        pass

    def hear(self, data: bytes) -> None:
        pass

    def is_short(self) -> bool:
        return False

    async def keep(self) -> None:
        pass

    def settle(self, outcome: Outcome) -> None:
        pass


class Admission:
    """Counts requests from admission to the end of their answers; refuses beyond `most`, and all when draining."""

    def __init__(self, most: int, clerk: Clerk | None = None) -> None:
        self._most = most
        self.clerk: Clerk = clerk or OpenClerk()
        self.in_flight = 0
        self.draining = False

    def admitted(self) -> AbstractContextManager[None]:
        """Counted until it is left. Raises RequestRefused: 429 when full, 503 when draining."""
        if self.draining:
            raise shutting_down()
        if self.in_flight >= self._most:
            raise RequestRefused(
                f"{self._most} requests are being answered already; try again soon", status=429, code="server_busy"
            )
        return _Admitted(self)


class _Admitted:
    def __init__(self, admission: Admission) -> None:
        self._admission = admission

    def __enter__(self) -> None:
        self._admission.in_flight += 1

    def __exit__(self, *raised: object) -> None:
        self._admission.in_flight -= 1
