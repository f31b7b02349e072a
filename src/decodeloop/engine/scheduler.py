"""Who runs next. The only writer of Sequence."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from decodeloop.engine.commit import Committed, close, commit
from decodeloop.engine.kv_cache import BlockTable, KvCache
from decodeloop.engine.rows import VerifyRows
from decodeloop.engine.sequence import Sequence, Stage
from decodeloop.engine.settings import EngineSettings
from decodeloop.engine.text import Tokenizer
from decodeloop.speculation.block import Verdict
from decodeloop.types import Chunk, FinishReason, Load, RequestRefused


@dataclass(frozen=True, slots=True)
class Chunked:
    """A piece of an unfinished prompt: `tokens` of it from `sequence.computed` on."""

    sequence: Sequence
    tokens: int

    @property
    def completes(self) -> bool:
        return self.tokens == self.sequence.pending


@dataclass(frozen=True, slots=True)
class Turn:
    """What runs in one step, and how many draft tokens it may carry besides."""

    decoding: tuple[Sequence, ...]
    chunks: tuple[Chunked, ...]
    draft_budget: int

    def without(self, held: Collection[int]) -> Turn:
        """The same, in which these decoding sequences sit out."""
        return replace(self, decoding=tuple(s for i, s in enumerate(self.decoding) if i not in held))

    def load_without(self, load: Load, held: Collection[int]) -> Load:
        """What is left of the step's load when they do."""
        context_tokens = load.context_tokens - sum(self.decoding[i].computed for i in held)
        return replace(load, running=load.running - len(held), context_tokens=context_tokens)


BATCH_YIELDS_S = 30.0  # then it has waited long enough: under steady load it would never run
FIRST_TOKEN_S = 5.0  # within which one is due that nobody asked for sooner


class Scheduler:
    """Whose first token is due first goes first: without objectives, who came first. The batch tier yields, for a
    while. Short of memory, it preempts the youngest."""

    def __init__(self, cache: KvCache, settings: EngineSettings, max_context: int) -> None:
        self.cache, self._settings, self.max_context = cache, settings, max_context
        self.running: list[Sequence] = []
        self.waiting: deque[Sequence] = deque()
        self.preemptions = 0

    def submit(self, sequence: Sequence, now_s: float) -> None:
        """Queue a sequence. Raises RequestRefused (429) when the queue is full."""
        if len(self.waiting) >= self._settings.max_waiting:
            raise RequestRefused("the engine's queue is full; try again later", status=429, code="queue_full")
        self._enqueue(sequence, now_s)

    def submit_sibling(self, sequence: Sequence, now_s: float) -> None:
        """Queue a further choice of a request that was admitted: it goes first, and cannot be refused."""
        sequence.queued_s = now_s
        self.waiting.appendleft(sequence)

    def load(self, now_s: float, chunks: Iterable[Chunked] = ()) -> Load:
        """chunks: of prompts, read in the step that begins."""
        oldest_s = min((s.queued_s for s in self.waiting), default=now_s)
        return Load(
            running=len(self.running),
            waiting=len(self.waiting),
            context_tokens=sum(s.computed for s in self.running),
            kv_free_fraction=self.cache.free_fraction,
            oldest_wait_ms=1e3 * (now_s - oldest_s),
            prefill_tokens=sum(chunk.tokens for chunk in chunks),
        )

    def next_turn(self, now_s: float) -> Turn:
        """Choose the step's work: every ready sequence decodes, and what is left of the budget goes to prompts."""
        self._admit(now_s)
        decoding = self._reserve_decoding(now_s)
        left = self._settings.max_step_tokens - len(decoding)
        limit = min(left, self._settings.prefill_chunk) if decoding else left
        chunks = []
        for sequence in [s for s in self.running if s.pending > 1]:
            tokens = min(sequence.pending, limit)
            if tokens > 0 and self._reserve(sequence, sequence.computed + tokens, now_s):
                chunks.append(Chunked(sequence, tokens))
                limit -= tokens
                left -= tokens
        chunks = [chunk for chunk in chunks if chunk.sequence.stage is Stage.RUNNING]
        decoding = [s for s in decoding if s.stage is Stage.RUNNING]
        return Turn(tuple(decoding), tuple(chunks), left)

    def draft_room(self, turn: Turn) -> int:
        """Draft tokens a sequence may have without evicting anything, however the others use theirs."""
        if not turn.decoding:
            return 0
        block_tokens = self.cache.block_tokens
        blocks = self.cache.free_blocks // len(turn.decoding)
        return blocks * block_tokens

    def slack(self, sequence: Sequence) -> int:
        """Draft tokens that fit into blocks the sequence already holds."""
        return len(sequence.table.blocks) * self.cache.block_tokens - len(sequence.tokens)

    def reserve_draft(self, sequence: Sequence, draft_len: int) -> None:
        lent = self.cache.lend(sequence.table, len(sequence.tokens) + draft_len)
        assert lent, "the plan was capped by the free blocks"

    def advance_prompt(self, sequence: Sequence, tokens: int) -> None:
        """A piece of a prompt is computed. Its last piece ends in a verdict, hence in `commit` instead."""
        sequence.computed += tokens
        self.cache.publish(sequence.table, sequence.tokens, sequence.computed)

    def commit(self, sequence: Sequence, verdict: Verdict, rows: VerifyRows, tokenizer: Tokenizer) -> Committed:
        committed = commit(sequence, verdict, rows, tokenizer)
        self.cache.publish(sequence.table, sequence.tokens, sequence.computed)
        if sequence.finish_reason is not None:
            self._leave(sequence)
        else:
            self.cache.shrink(sequence.table, len(sequence.tokens))
        return committed

    def finish(self, sequence: Sequence, reason: FinishReason) -> tuple[Chunk, ...]:
        """End a sequence wherever it stands: aborted, late, or failed. Its memory is free at once."""
        chunks = close(sequence, reason)
        self._leave(sequence)
        return chunks

    def expired(self, now_s: float) -> list[Sequence]:
        """Sequences past their request's deadline."""
        return [
            s
            for s in (*self.running, *self.waiting)
            if s.request.deadline_ms is not None and 1e3 * (now_s - s.request.arrived_s) > s.request.deadline_ms
        ]

    def _enqueue(self, sequence: Sequence, now_s: float) -> None:
        sequence.queued_s = now_s
        if sequence.batch_tier:
            self.waiting.append(sequence)
            return
        due_s = _due_s(sequence)
        behind = (
            i
            for i, s in enumerate(self.waiting)
            if (now_s - s.queued_s < BATCH_YIELDS_S if s.batch_tier else _due_s(s) > due_s)
        )
        place = next(behind, len(self.waiting))
        self.waiting.insert(place, sequence)

    def _admit(self, now_s: float) -> None:
        while self.waiting and len(self.running) < self._settings.max_sequences:
            sequence = self.waiting[0]
            table, covered = self.cache.open(sequence.tokens, sequence.organization)
            first = min(len(sequence.tokens), covered + self._settings.prefill_chunk)
            if not self._fits(table, first) or not self.cache.grow(table, first):
                self.cache.release(table)
                return
            self.waiting.popleft()
            self.cache.count_lookup(len(sequence.tokens), covered)
            sequence.table, sequence.computed, sequence.stage = table, covered, Stage.RUNNING
            sequence.tally.queue_ms += 1e3 * (now_s - sequence.queued_s)
            if sequence.output_tokens == 0:
                sequence.tally.cached = covered
            self.running.append(sequence)

    def _fits(self, table: BlockTable, tokens: int) -> bool:
        """Leave a block for each running sequence, so that a newcomer is not preempted at once."""
        missing = self.cache.blocks_for(tokens) - len(table.blocks)
        return missing + len(self.running) <= self.cache.available_blocks or not self.running

    def _reserve_decoding(self, now_s: float) -> list[Sequence]:
        ready = []
        for sequence in [s for s in self.running if s.pending == 1]:
            if sequence.stage is Stage.RUNNING and self._reserve(sequence, len(sequence.tokens), now_s):
                ready.append(sequence)
        return [s for s in ready if s.stage is Stage.RUNNING]

    def _reserve(self, sequence: Sequence, positions: int, now_s: float) -> bool:
        """Room for `positions`, preempting younger sequences if it must. False if `sequence` itself gave way."""
        if sequence.stage is not Stage.RUNNING:
            return False
        while not self.cache.grow(sequence.table, positions):
            victim = max(self.running, key=_yields)
            self._preempt(victim, now_s)
            if victim is sequence:
                return False
        return True

    def _preempt(self, victim: Sequence, now_s: float) -> None:
        self.running.remove(victim)
        self.cache.release(victim.table)
        victim.computed, victim.stage, victim.queued_s = 0, Stage.WAITING, now_s
        self.waiting.appendleft(victim)
        self.preemptions += 1

    def _leave(self, sequence: Sequence) -> None:
        if sequence.stage is Stage.RUNNING:
            self.running.remove(sequence)
        else:
            self.waiting.remove(sequence)
        self.cache.release(sequence.table)
        sequence.stage = Stage.FINISHED


def _due_s(sequence: Sequence) -> float:
    """When its first token should be there; what was begun already is not waited with."""
    if sequence.output_tokens:
        return sequence.queued_s
    wanted_ms = sequence.request.slo.ttft_ms
    return sequence.queued_s + (FIRST_TOKEN_S if wanted_ms is None else min(wanted_ms / 1e3, FIRST_TOKEN_S))


def _yields(sequence: Sequence) -> tuple[bool, float, int]:
    """Who gives way first: the batch tier, then the latest to arrive."""
    return sequence.batch_tier, sequence.request.arrived_s, sequence.id
