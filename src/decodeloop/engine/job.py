"""A request inside the engine: its choices, and the reader who waits for them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Run
from typing import Protocol

from decodeloop.engine.sequence import Sequence
from decodeloop.types import (
    Chunk,
    FinishReason,
    Report,
    Request,
    RequestRefused,
    Usage,
)

OpenSequence = Callable[[int], Sequence]  # choice -> its sequence


class Reader(Protocol):
    """Where an answer goes. Called from the engine's thread; never blocks."""

    def put(self, chunks: Run[Chunk]) -> None: ...

    def end(self) -> None: ...

    def fail(self, error: RequestRefused) -> None: ...


class Job:
    """Choice 0 runs first; the others start when its prompt is in the cache, and find it there."""

    def __init__(self, request: Request, open_sequence: OpenSequence, reader: Reader) -> None:
        self.request, self._open, self._reader = request, open_sequence, reader
        self.sequences = [open_sequence(0)]
        self._finished = 0
        self._called_tools: set[int] = set()
        self.ended = False

    def open_siblings(self) -> list[Sequence]:
        """The choices beyond the first, once; nothing on later calls."""
        siblings = [self._open(choice) for choice in range(len(self.sequences), self.request.n)]
        self.sequences.extend(siblings)
        return siblings

    def say(self, sequence: Sequence, chunks: Run[Chunk]) -> None:
        """Pass on what a step gave one choice; the last choice's end is the answer's end."""
        if self.ended:
            return
        said = list(chunks)
        if any(chunk.tool_calls for chunk in said):
            self._called_tools.add(sequence.choice)
        if sequence.finish_reason is not None:
            self._finished += 1
            said.append(self._last_chunk(sequence))
        if said:
            self._reader.put(said)
        if self._finished == self.request.n:
            self.ended = True
            self._reader.end()

    def fail(self, error: RequestRefused) -> None:
        if not self.ended:
            self.ended = True
            self._reader.fail(error)

    def _last_chunk(self, sequence: Sequence) -> Chunk:
        reason = sequence.finish_reason
        if reason is FinishReason.STOP and sequence.choice in self._called_tools:
            reason = FinishReason.TOOL_CALLS
        done = self._finished == self.request.n
        return Chunk(
            index=sequence.choice,
            finish_reason=reason,
            stop_reason=sequence.stop_reason,
            usage=self.usage() if done else None,
            report=self.report() if done else None,
        )

    def usage(self) -> Usage:
        tallies = [sequence.tally for sequence in self.sequences]
        return Usage(
            prompt=self.sequences[0].prompt_tokens,
            cached=tallies[0].cached,
            completion=sum(tally.delivered for tally in tallies),
            drafted=sum(tally.drafted for tally in tallies),
            verified=sum(tally.verified for tally in tallies),
            accepted=sum(tally.accepted for tally in tallies),
        )

    def report(self) -> Report:
        tallies = [sequence.tally for sequence in self.sequences]
        drafters = sum((tally.drafters for tally in tallies), start=type(tallies[0].drafters)())
        reasons = sum((tally.reasons for tally in tallies), start=type(tallies[0].reasons)())
        return Report(
            seed=self.request.seed,
            request_class=self.request.request_class,
            drafter=drafters.most_common(1)[0][0] if drafters else None,
            queue_ms=sum(tally.queue_ms for tally in tallies),
            prefill_ms=sum(tally.prefill_ms for tally in tallies),
            draft_ms=sum(tally.draft_ms for tally in tallies),
            verify_ms=sum(tally.verify_ms for tally in tallies),
            sample_ms=sum(tally.sample_ms for tally in tallies),
            overhead_ms=sum(tally.overhead_ms for tally in tallies),
            steps=sum(tally.steps for tally in tallies),
            drafted=sum(tally.drafted for tally in tallies),
            verified=sum(tally.verified for tally in tallies),
            accepted=sum(tally.accepted for tally in tallies),
            discarded=sum(tally.discarded for tally in tallies),
            reasons={reason.value: count for reason, count in reasons.items()},
            accepted_per_step=tuple(count for tally in tallies for count in tally.accepted_per_step),
            verified_per_step=tuple(count for tally in tallies for count in tally.verified_per_step),
        )
