"""One admitted request: what it has used, what it holds, and how it is settled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from decodeloop.gateway.admission import Exhausted
from decodeloop.gateway.bounds import likely_prompt_tokens
from decodeloop.governance.capability import Denial, Place, Ruling
from decodeloop.governance.ledger import LedgerRow, Outcome, Timings
from decodeloop.governance.quota import Hold
from decodeloop.types import ChatPrompt, Chunk, Report, Request, Usage

__all__ = ["GovernedTicket", "Office", "Standing", "Tally"]

MARGIN_TOKENS = 16  # before the end of what is reserved, by choice: one step's tokens


class Office(Protocol):
    """What a ticket asks of the clerk that gave it."""

    async def move(self, ticket: GovernedTicket, place: Place) -> None: ...

    async def extend(self, ticket: GovernedTicket, bound: Usage) -> bool: ...

    def settle(self, ticket: GovernedTicket, row: LedgerRow) -> None: ...

    def now_s(self) -> float: ...


@dataclass(slots=True)
class Tally:
    """What a call's chunks told so far, by prompt."""

    requests: Sequence[Request]
    final: dict[int, Usage] = field(default_factory=dict)
    prompts: dict[int, Usage] = field(default_factory=dict)
    tokens: dict[int, int] = field(default_factory=dict)
    timings: Timings = Timings()
    started: bool = False
    captured: dict[int, list[str]] | None = None  # by choice, where it is granted and consented

    def count(self, chunk: Chunk) -> None:
        self.started = True
        place = chunk.index // self.requests[0].n
        tokens = len(chunk.token_ids)
        if not tokens and (chunk.text or chunk.reasoning or chunk.tool_calls):
            tokens = 1  # an engine that tells no ids: at least one
        if tokens:
            self.tokens[place] = self.tokens.get(place, 0) + tokens
        if chunk.usage is not None:
            (self.final if chunk.report is not None else self.prompts)[place] = chunk.usage
        if self.captured is not None and chunk.text:
            self.captured.setdefault(chunk.index, []).append(chunk.text)
        if chunk.report is not None:
            self.timings = _added(self.timings, chunk.report)

    @property
    def completion(self) -> int:
        return sum(self.tokens.values())

    def usage(self, outcome: Outcome) -> Usage:
        """What is charged: what the engine said, else what was delivered and a guess at the prompt.

        A request that failed before it said anything used nothing that its sender should pay for.
        """
        if outcome is Outcome.FAILED and not self.started:
            return Usage()
        return _sum([self._of(place) for place in range(len(self.requests))])

    def _of(self, place: int) -> Usage:
        if place in self.final:
            return self.final[place]
        known = self.prompts.get(place)
        prompt = likely_prompt_tokens(self.requests[place].prompt) if known is None else known.prompt
        return Usage(
            prompt=prompt,
            cached=0 if known is None else known.cached,
            completion=max(self.tokens.get(place, 0), 0 if known is None else known.completion),
        )


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
        requests: Sequence[Request],
        ruling: Ruling,
        standing: Standing,
        headers: Sequence[tuple[bytes, bytes]],
    ) -> None:
        self._office, self.requests, self.ruling = office, requests, ruling
        self.standing, self.headers = standing, headers
        self.tally = Tally(requests)
        self._open_ended = any(request.params.max_tokens is None for request in requests)
        self._choices = sum(request.n for request in requests)
        self._refused = False  # there is no more than what is held
        self._settled = False

    @property
    def id(self) -> str:
        return self.standing.row.request_id

    @property
    def denials(self) -> Sequence[Denial]:
        return self.ruling.denials

    def content(self) -> object:
        """What was asked and answered, for the audit; None: not to be kept."""
        if self.tally.captured is None:
            return None
        prompts = [
            [dict(message) for message in prompt.messages] if isinstance(prompt, ChatPrompt) else prompt
            for prompt in (request.prompt for request in self.requests)
        ]
        return {"prompts": prompts, "answers": ["".join(texts) for _, texts in sorted(self.tally.captured.items())]}

    async def move(self, place: Place) -> None:
        await self._office.move(self, place)

    def count(self, chunk: Chunk) -> None:
        self.tally.count(chunk)

    async def keep(self) -> None:
        if not self._open_ended:
            return
        left = self.standing.bound.completion - self.tally.completion
        margin = MARGIN_TOKENS * self._choices
        if left > margin:
            return
        if not self._refused:
            bound = self.standing.bound
            grown = replace(bound, completion=2 * bound.completion)
            self._refused = not await self._office.extend(self, grown)
        if self._refused and left <= margin:
            raise Exhausted

    def settle(self, outcome: Outcome) -> None:
        if self._settled:
            return
        self._settled = True
        usage, timings, row = self.tally.usage(outcome), self.tally.timings, self.standing.row
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


def _sum(usages: Sequence[Usage]) -> Usage:
    if len(usages) == 1:
        return usages[0]
    return Usage(
        prompt=sum(usage.prompt for usage in usages),
        cached=sum(usage.cached for usage in usages),
        completion=sum(usage.completion for usage in usages),
        drafted=sum(usage.drafted for usage in usages),
        verified=sum(usage.verified for usage in usages),
        accepted=sum(usage.accepted for usage in usages),
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
