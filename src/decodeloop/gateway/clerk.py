"""Governance at work: rules on each request, reserves what it may cost, and records what it did."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from decodeloop.gateway.admission import Terms
from decodeloop.gateway.captures import Captured
from decodeloop.gateway.claims import Claim
from decodeloop.gateway.standing import rate_headers, refusal_of
from decodeloop.gateway.store import Books, Idempotency, Opening, Recalled, Reserved, StoreUnavailable
from decodeloop.gateway.ticket import GovernedTicket, Standing
from decodeloop.governance.audit import Entry
from decodeloop.governance.capability import Ask, Denial, Place, Ruling
from decodeloop.governance.directory import Directory
from decodeloop.governance.ledger import LedgerRow, Outcome, Reservation, Timings, bound_charge
from decodeloop.governance.quota import Limit, holds_for
from decodeloop.governance.settings import GovernanceSettings
from decodeloop.governance.showback import Sums
from decodeloop.types import Identity, RequestRefused, Usage

__all__ = ["AuditLog", "GovernedClerk"]

log = logging.getLogger(__name__)


class AuditLog(Protocol):
    def write(self, entry: Entry) -> None:
        """Queue an entry; never waits."""
        ...


class CaptureLog(Protocol):
    def write(self, value: Captured) -> None:
        """Queue a request; never waits."""
        ...


class GovernedClerk:
    """Implements admission's Clerk. clock: Unix seconds. directory: as it stands now."""

    def __init__(
        self,
        settings: GovernanceSettings,
        directory: Callable[[], Directory],
        books: Books,
        audit: AuditLog | None,
        clock: Callable[[], float],
        *,
        captures: CaptureLog | None = None,
    ) -> None:
        self._settings, self._directory, self._books = settings, directory, books
        self._audit, self._captures, self.now_s = audit, captures, clock
        self._open: dict[str, GovernedTicket] = {}
        self._marker: asyncio.Task[None] | None = None
        self.sums: defaultdict[tuple[str, str], Sums] = defaultdict(Sums)  # by (pool, class), since the start
        self.unrecorded = 0  # requests without limits that ran while the books could not be written

    async def start(self) -> None:
        self._marker = asyncio.create_task(self._marking())

    async def close(self) -> None:
        if self._marker is not None:
            self._marker.cancel()

    def rule(self, claim: Claim, terms: Terms) -> Ruling:
        return self._ruling(self._directory(), claim, None, terms)

    def denied_smaller(self, identity: Identity, asked: str, model: str) -> str | None:
        ruling = self._directory().rule(identity, Ask(model=asked, smaller=model), None, self.now_s())
        denied = [each.why for each in ruling.denials if each.capability in ("smaller_model", "policy")]
        return "; ".join(denied) if denied and not ruling.allowed else None

    async def reserve(self, claim: Claim, place: Place, terms: Terms) -> GovernedTicket:
        directory, now_s = self._directory(), self.now_s()
        place = replace(place, price=directory.price(claim.model, place.pool))
        ruling = self._ruling(directory, claim, place, terms)
        row = _opened(claim, place, terms, now_s)
        bound = self._bound(claim)
        limits = directory.limits_of(claim.identity)
        holds = holds_for(limits, claim.identity, bound_charge(place.price, bound), now_s)
        opening = Opening(reservation=Reservation(row=row, bound=bound), holds=holds, idempotency=terms.named)
        reserved = await self._reserved(opening, limits)
        headers = rate_headers(limits, holds, reserved.used, now_s)
        ticket = GovernedTicket(self, claim, ruling, Standing(row, bound, holds), headers=headers, terms=terms)
        if ruling.capture_content and terms.consent:
            ticket.tally.captured = {}
        self._open[claim.id] = ticket
        return ticket

    def _bound(self, claim: Claim) -> Usage:
        """The most that it uses; of an answer without max_tokens, the first part."""
        settings = self._settings
        prompt = -int(-claim.prompt_bytes // settings.prompt_bytes_per_token) + claim.prompt_tokens
        answer = settings.answer_tokens * claim.choices if claim.answer_tokens is None else claim.answer_tokens
        return Usage(prompt=prompt + settings.template_tokens * claim.templates, completion=answer)

    def _ruling(self, directory: Directory, claim: Claim, place: Place | None, terms: Terms) -> Ruling:
        aliased = terms.aliased
        if aliased is None:
            ask = claim.ask(terms.pool)
        else:
            ask = claim.ask(terms.pool, aliased.asked, aliased.model if aliased.smaller else "")
        ruling = directory.rule(claim.identity, ask, place, self.now_s())
        if ruling.allowed and ruling.denials and self._settings.refuse_denied_overrides:
            ruling = replace(ruling, allowed=False)
        if not ruling.allowed:
            self._note_denial(claim, place, ruling.denials)
            raise RequestRefused(
                f"not granted: {ruling.explanation}", status=403, param=_param(ruling.denials), code="permission_denied"
            )
        return ruling

    async def _reserved(self, opening: Opening, limits: Sequence[Limit]) -> Reserved:
        row = opening.reservation.row
        try:
            reserved = await self._books.reserve(opening)
        except asyncio.CancelledError:  # it may have been reserved all the same: nobody else will settle it
            self._books.settle(replace(row, ended_s=self.now_s(), outcome=Outcome.CANCELLED))
            raise
        except StoreUnavailable as error:
            if opening.holds or opening.idempotency is not None:
                log.warning("nothing can be reserved: %s", error)
                raise RequestRefused(
                    "budgets can't be checked now; try again soon", status=503, code="books_unavailable"
                ) from None
            self.unrecorded += 1
            return Reserved()
        if reserved.refusal is not None:
            refused = refusal_of(reserved, opening, limits, self.now_s())
            self._note_row(row, "denial", refused.code or "", refused.message)
            raise refused
        return reserved

    async def move(self, ticket: GovernedTicket, place: Place) -> None:
        """Rule and reserve again for where it runs now; what it held is held still, and no less."""
        directory, standing = self._directory(), ticket.standing
        place = replace(place, price=directory.price(standing.row.model, place.pool))
        ticket.ruling = self._ruling(directory, ticket.claim, place, replace(ticket.terms, pool=None))
        row = replace(
            standing.row,
            pool=place.pool,
            upstream=place.upstream,
            regime=place.regime,
            price=place.price,
            losslessness=place.losslessness.value,
            certificate=place.certificate,
        )
        ticket.standing = replace(standing, row=row)
        if not await self.extend(ticket, standing.bound):
            raise RequestRefused("out of budget for where this would run", status=429, code="insufficient_quota")

    async def extend(self, ticket: GovernedTicket, bound: Usage) -> bool:
        standing = ticket.standing
        charge = bound_charge(standing.row.price, bound)
        holds = tuple(replace(hold, amount=max(hold.amount, hold.unit.of(charge))) for hold in standing.holds)
        try:
            reserved = await self._books.extend(Reservation(row=standing.row, bound=bound), holds)
        except StoreUnavailable:
            return not holds
        if reserved.refusal is None:
            ticket.standing = replace(standing, bound=bound, holds=holds)
            return True
        return not holds  # without limits there is nothing to exceed

    def settle(self, ticket: GovernedTicket, row: LedgerRow) -> None:
        self._open.pop(ticket.id, None)
        self._books.settle(row)
        self.sums[row.pool, row.request_class].add(row)
        if self._captures is not None and ticket.tally.captured is not None and row.outcome is Outcome.COMPLETED:
            self._captures.write(Captured(row, ticket.terms.body, ticket.answers()))
        overrides = ",".join(denial.capability for denial in ticket.ruling.denials)
        reason = f"without {overrides}" if overrides else ""
        aliased = ticket.terms.aliased
        if aliased is not None:
            reason = f"{reason}; {aliased.why}" if reason else aliased.why
        self._note_row(row, "request", "allowed", reason, grant=ticket.ruling.grant, content=ticket.content())

    async def recall(self, named: Idempotency) -> Recalled:
        return await self._books.recall(named)

    def keep(self, named: Idempotency, request_id: str, answer: bytes) -> None:
        self._books.keep(named, request_id, answer)

    def take_back(self, estimate: LedgerRow) -> None:
        """As a request that failed: its key is free again."""
        nothing = replace(
            estimate, ended_s=self.now_s(), outcome=Outcome.FAILED, usage=Usage(), timings=Timings(), billed=0, cost=0
        )
        self._books.settle(nothing)
        self._note_row(nothing, "request", "taken back", "its gateway died with the answer, and its key was sent again")

    def note_repeat(self, identity: Identity, earlier: str) -> None:
        if self._audit is not None:
            self._audit.write(
                Entry(
                    at_s=self.now_s(),
                    kind="request",
                    identity=identity,
                    request_id=earlier,
                    decision="told again",
                    reason="its idempotency key was sent again",
                )
            )

    async def _marking(self) -> None:
        """Now and then write down what open requests have used, in case this process dies."""
        while True:
            await asyncio.sleep(self._settings.checkpoint_s)
            told = [
                (ticket.id, ticket.used(Outcome.CANCELLED)) for ticket in self._open.values() if ticket.tally.started
            ]
            if told:
                self._books.checkpoint(told)

    def _note_denial(self, claim: Claim, place: Place | None, denials: Sequence[Denial]) -> None:
        if self._audit is not None:
            self._audit.write(
                Entry(
                    at_s=self.now_s(),
                    kind="denial",
                    identity=claim.identity,
                    request_id=claim.id,
                    capability=",".join(denial.capability for denial in denials),
                    decision="denied",
                    reason="; ".join(denial.why for denial in denials),
                    regime="" if place is None else place.regime,
                )
            )

    def _note_row(
        self, row: LedgerRow, kind: str, decision: str, reason: str, *, grant: str = "", content: object = None
    ) -> None:
        if self._audit is None:
            return
        usage = row.usage
        self._audit.write(
            Entry(
                at_s=self.now_s(),
                kind=kind,
                identity=row.identity,
                request_id=row.request_id,
                capability=f"{row.model}@{row.pool}",
                decision=decision,
                reason=reason,
                regime=row.regime,
                certificate=row.certificate,
                details={
                    "grant": grant,
                    "losslessness": row.losslessness,
                    **({"asked_model": row.asked_model} if row.asked_model else {}),
                    "outcome": row.outcome.value,
                    "prompt": usage.prompt,
                    "completion": usage.completion,
                    "billed": row.billed,
                },
                content=content,
            )
        )


def _opened(claim: Claim, place: Place, terms: Terms, now_s: float) -> LedgerRow:
    return LedgerRow(
        request_id=claim.id,
        identity=claim.identity,
        model=claim.model,
        request_class=claim.request_class.value,
        task=terms.task,
        trace=terms.trace,
        pool=place.pool,
        upstream=place.upstream,
        regime=place.regime,
        started_s=now_s,
        price=place.price,
        asked_model="" if terms.aliased is None else terms.aliased.asked,
        losslessness=place.losslessness.value,
        certificate=place.certificate,
    )


def _param(denials: Sequence[Denial]) -> str | None:
    body_fields = {"model": "model", "speculation": "decodeloop.speculation", "drafter": "decodeloop.drafter"}
    return next((body_fields[denial.capability] for denial in denials if denial.capability in body_fields), None)
