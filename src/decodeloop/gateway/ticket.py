"""One admitted request: what it has used, what it holds, and how it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from decodeloop.gateway.admission import Exhausted, Terms
from decodeloop.gateway.claims import Claim
from decodeloop.gateway.wire.accounts import summed_usage
from decodeloop.gateway.wire.events import texts_of
from decodeloop.governance.capability import Place, Ruling
from decodeloop.governance.ledger import LedgerRow, Outcome, Timings
from decodeloop.governance.quota import Hold
from decodeloop.types import Chunk, Report, Usage

__all__ = ["GovernedTicket", "Office", "Standing", "Tally"]

MARGIN_TOKENS = 16  # before the end of what is reserved, by choice: one step's tokens
PIECE_TOKENS = 8  # that a piece of unknown size may hold, for what is reserved
LIKELY_BYTES_PER_TOKEN = 4


class Office(Protocol):
    """What a ticket asks of the clerk that gave it."""

    async def move(self, ticket: GovernedTicket, place: Place) -> None: ...

    async def extend(self, ticket: GovernedTicket, bound: Usage) -> bool: ...

    def settle(self, ticket: GovernedTicket, row: LedgerRow) -> None: ...

    def now_s(self) -> float: ...


@dataclass(slots=True)
class Tally:
    """What an answer's chunks told so far, by choice."""

    each: int  # choices of a prompt
    likely_prompt: int  # for an answer that ends before its engine says how many tokens its prompt had
    final: list[Usage] = field(default_factory=list)  # one a prompt, once its last chunk came
    partial: dict[int, Usage] = field(default_factory=dict)
    tokens: int = 0  # counted of those prompts that aren't final
    pieces: int = 0  # of unknown size
    timings: Timings = Timings()
    started: bool = False
    captured: dict[int, list[str]] | None = None  # where it is granted and consented

    def count(self, chunk: Chunk) -> None:
        self.started = True
        if chunk.token_ids:
            self.tokens += len(chunk.token_ids)
        elif chunk.text or chunk.reasoning or chunk.tool_calls:
            self.pieces += 1
        if chunk.report is not None:
            self.timings = _added(self.timings, chunk.report)
        if chunk.usage is not None:
            prompt = chunk.index // self.each
            if chunk.report is not None:
                self.final.append(chunk.usage)
                self.partial.pop(prompt, None)
            else:
                self.partial[prompt] = chunk.usage
        if self.captured is not None and chunk.text:
            self.captured.setdefault(chunk.index, []).append(chunk.text)

    def count_piece(self, usage: Usage | None) -> None:
        self.started = True
        if usage is not None:
            self.final = [usage]
        else:
            self.pieces += 1

    def hear(self, data: bytes) -> None:
        if self.captured is not None:
            for index, text in texts_of(data):
                self.captured.setdefault(index, []).append(text)

    @property
    def most(self) -> int:
        """Answer tokens that may have been made."""
        return self.tokens + PIECE_TOKENS * self.pieces

    def usage(self, outcome: Outcome, prompts: int) -> Usage:
        """What is charged: what the engine said, else what was delivered and a guess at the prompt.

        A request that failed before it said anything used nothing that its sender should pay for.
        """
        if len(self.final) >= prompts:
            return summed_usage(self.final)
        if outcome is Outcome.FAILED and not self.started:
            return Usage()
        told = summed_usage([*self.final, *self.partial.values()])
        counted = self.tokens + self.pieces
        prompt = told.prompt if self.partial or self.final else self.likely_prompt
        return replace(told, prompt=prompt, completion=max(told.completion, counted))


@dataclass(frozen=True, slots=True)
class Standing:
    """What a ticket holds now: of whom, how much at most."""

    row: LedgerRow
    bound: Usage
    holds: tuple[Hold, ...]


class GovernedTicket:
    """Implements admission's Ticket."""

    def __init__(
        self,
        office: Office,
        claim: Claim,
        ruling: Ruling,
        standing: Standing,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (),
        terms: Terms | None = None,
    ) -> None:
        self._office, self.claim, self.ruling, self.terms = office, claim, ruling, terms or Terms()
        self.standing, self.headers = standing, headers
        each = max(1, claim.choices // max(1, len(claim.prompts)))
        self.tally = Tally(each, claim.prompt_tokens + -(-claim.prompt_bytes // LIKELY_BYTES_PER_TOKEN))
        self._refused = False  # there is no more than what is held
        self._settled = False

    @property
    def id(self) -> str:
        return self.standing.row.request_id

    def content(self) -> object:
        """What was asked and answered, for the audit; None: not to be kept."""
        if self.tally.captured is None:
            return None
        return {"prompts": list(self.claim.prompts), "answers": self.answers()}

    def answers(self) -> list[str]:
        """By choice, where they are captured and came as text."""
        return ["".join(texts) for _, texts in sorted((self.tally.captured or {}).items())]

    def used(self, outcome: Outcome) -> Usage:
        return self.tally.usage(outcome, len(self.claim.prompts))

    @property
    def cap(self) -> int | None:
        if self.claim.answer_tokens is not None or not self.standing.holds:
            return None
        return self.standing.bound.completion // self.claim.choices

    async def move(self, place: Place) -> None:
        if self.tally.captured:
            self.tally.captured = {}  # nobody was told it
        await self._office.move(self, place)

    def count(self, chunk: Chunk) -> None:
        self.tally.count(chunk)

    def count_piece(self, usage: Usage | None) -> None:
        self.tally.count_piece(usage)

    def hear(self, data: bytes) -> None:
        self.tally.hear(data)

    def is_short(self) -> bool:
        if self.claim.answer_tokens is not None:
            return False
        left = self.standing.bound.completion - self.tally.most
        return left <= MARGIN_TOKENS * self.claim.choices

    async def keep(self) -> None:
        if not self.is_short():
            return
        if not self._refused:
            bound = self.standing.bound
            grown = replace(bound, completion=2 * bound.completion)
            self._refused = not await self._office.extend(self, grown)
        if self._refused:
            raise Exhausted(self.used(Outcome.COMPLETED))

    def settle(self, outcome: Outcome) -> None:
        if self._settled:
            return
        self._settled = True
        usage, timings, row = self.used(outcome), self.tally.timings, self.standing.row
        self._office.settle(
            self,
            replace(
                row,
                ended_s=self._office.now_s(),
                outcome=outcome,
                usage=usage,
                timings=timings,
                billed=row.price.of(usage),
                cost=round(timings.machine_ms * row.price.second_cost * 1e6),  # ms, per second, in billionths
            ),
        )


def _added(timings: Timings, report: Report) -> Timings:
    return Timings(
        queue_ms=timings.queue_ms + report.queue_ms,
        prefill_ms=timings.prefill_ms + report.prefill_ms,
        draft_ms=timings.draft_ms + report.draft_ms,
        verify_ms=timings.verify_ms + report.verify_ms,
        sample_ms=timings.sample_ms + report.sample_ms,
        overhead_ms=timings.overhead_ms + report.overhead_ms,
    )
