"""One replica of a simulated fleet: continuous batching, chunked prefill, speculation by a rule."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from decodeloop.evaluation.acceptance import CLASS_INDEX, Acceptance, Drafts
from decodeloop.evaluation.workload import Arrival
from decodeloop.policy.cost_start import speculating_ms
from decodeloop.types import CostModel, IntArray


def _none() -> IntArray:
    return np.zeros(0, dtype=np.int64)


@dataclass(slots=True)
class Served:
    """A request's fate. Times in seconds of the simulation; tpot without the first token.

    number: unique among the simulation's requests. nature: how its drafts fare.
    """

    arrival: Arrival
    number: int = 0
    nature: int = 0
    first_token_s: float = -1.0
    finished_s: float = -1.0

    @property
    def done(self) -> bool:
        return self.finished_s >= 0.0

    @property
    def ttft_ms(self) -> float:
        return 1e3 * (self.first_token_s - self.arrival.at_s)

    @property
    def tpot_ms(self) -> float:
        gaps = self.arrival.output_tokens - 1
        return 1e3 * (self.finished_s - self.first_token_s) / gaps if gaps > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Batch:
    """The decoding rows of a step.

    classes, contexts: [N] class and cached tokens of each. context: cached tokens in all, of prompts being read too.
    prefill: prompt tokens that share the step. sequences: in the step, prompts included. waiting: not yet in it.
    """

    requests: Sequence[Served]
    classes: IntArray
    contexts: IntArray
    drafts: Drafts
    context: int
    prefill: int
    sequences: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Decided:
    """verify_lens: [N]. draft_ms: spent on drafting."""

    verify_lens: IntArray
    draft_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """accepted: [N] draft tokens kept. step_ms: of the whole step."""

    accepted: IntArray
    step_ms: float


class Rule(Protocol):
    """How much a simulated engine drafts and verifies."""

    def decide(self, batch: Batch) -> Decided: ...

    def observe(self, batch: Batch, decided: Decided, outcome: Outcome) -> None: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """prefill_chunk: prompt tokens of a step in which others decode. step_tokens: of any step, drafts included."""

    max_sequences: int = 256
    prefill_chunk: int = 2048
    step_tokens: int = 4096


@dataclass(slots=True)
class _Rows:
    """The running requests, as arrays: [R] of what doesn't change, and of what does. Tokens all."""

    requests: list[Served] = field(default_factory=list)
    natures: IntArray = field(default_factory=_none)
    classes: IntArray = field(default_factory=_none)
    prompts: IntArray = field(default_factory=_none)
    outputs: IntArray = field(default_factory=_none)
    pending: IntArray = field(default_factory=_none)  # of the prompt, still to read
    produced: IntArray = field(default_factory=_none)

    def add(self, requests: Sequence[Served], *, read: bool) -> None:
        """read: whether their prompts were read elsewhere, and a token produced."""
        self.requests = [*self.requests, *requests]
        prompts = [request.arrival.prompt_tokens for request in requests]
        self.natures = np.append(self.natures, [request.nature for request in requests])
        self.classes = np.append(self.classes, [CLASS_INDEX[request.arrival.request_class] for request in requests])
        self.prompts = np.append(self.prompts, prompts)
        self.outputs = np.append(self.outputs, [request.arrival.output_tokens for request in requests])
        self.pending = np.append(self.pending, [0] * len(requests) if read else prompts)
        self.produced = np.append(self.produced, [int(read)] * len(requests))

    def drop(self, gone: IntArray) -> list[Served]:
        left = [self.requests[i] for i in gone.tolist()]
        kept = np.ones(len(self.requests), dtype=bool)
        kept[gone] = False
        self.requests = [request for request, stays in zip(self.requests, kept.tolist(), strict=True) if stays]
        self.natures, self.classes, self.prompts = self.natures[kept], self.classes[kept], self.prompts[kept]
        self.outputs, self.pending, self.produced = self.outputs[kept], self.pending[kept], self.produced[kept]
        return left


@dataclass(slots=True)
class Replica:
    """prefills, decodes: which halves of a request it serves (both, unless the fleet is split)."""

    cost: CostModel
    rule: Rule
    acceptance: Acceptance
    limits: Limits
    rng: np.random.Generator
    prefills: bool = True
    decodes: bool = True
    waiting: deque[Served] = field(default_factory=deque)
    running: _Rows = field(default_factory=_Rows)
    busy_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    verified: int = 0
    drafted_rows: int = 0

    @property
    def load(self) -> int:
        return len(self.running.requests) + len(self.waiting)

    @property
    def decoding(self) -> int:
        return int(np.count_nonzero(self.running.pending == 0))

    @property
    def idle(self) -> bool:
        return not self.running.requests and not self.waiting

    def drop(self) -> None:
        self.waiting.clear()
        self.running = _Rows()

    def begin(self, now_s: float) -> Planned:
        """Plan the next step; it ends at `ends_s`, and `finish` takes it in."""
        room = min(self.limits.max_sequences - len(self.running.requests), len(self.waiting))
        if room > 0:
            self.running.add([self.waiting.popleft() for _ in range(room)], read=not self.prefills)
        rows = np.flatnonzero(self.running.pending == 0)
        chunks, left = self._chunks(len(rows))
        batch = self._batch(rows, chunks, left)
        decided = self.rule.decide(batch) if len(rows) else Decided(_none())
        verified = int(decided.verify_lens.sum())
        tokens = batch.prefill + len(rows) + verified
        ms = decided.draft_ms + speculating_ms(self.cost, int(np.count_nonzero(decided.verify_lens)))
        ms += self.cost.step_ms(tokens, batch.context, batch.sequences)
        return Planned(now_s + ms / 1e3, ms, rows, chunks, batch, decided)

    def finish(self, planned: Planned, now_s: float, started_s: float) -> list[Served]:
        """Returns the requests that leave the replica: finished, or read and due elsewhere."""
        self.busy_s += now_s - started_s
        self.steps += 1
        running, leaving = self.running, set()
        if len(planned.rows):
            self._advance(planned)
        for i, chunk in planned.chunks.items():
            running.pending[i] -= chunk
            if not running.pending[i]:
                running.produced[i] = 1
                running.requests[i].first_token_s = now_s
                self.tokens += 1
                if not self.decodes:
                    leaving.add(i)
        for i in np.flatnonzero(running.produced >= running.outputs).tolist():
            running.requests[i].finished_s = now_s
            leaving.add(i)
        return running.drop(np.array(sorted(leaving))) if leaving else []

    def _chunks(self, decoding: int) -> tuple[dict[int, int], int]:
        """Prompt tokens to read, by running request; and what is left of the step for drafts."""
        left = max(self.limits.step_tokens - decoding, 1)
        budget = min(left, self.limits.prefill_chunk) if decoding else left
        chunks = {}
        for i in np.flatnonzero(self.running.pending).tolist():
            if budget:
                chunks[i] = min(int(self.running.pending[i]), budget)
                budget -= chunks[i]
                left -= chunks[i]
        return chunks, left

    def _batch(self, rows: IntArray, chunks: dict[int, int], left: int) -> Batch:
        running = self.running
        produced = running.produced[rows]
        contexts = running.prompts[rows] + produced
        reading = sum(int(running.prompts[i] - running.pending[i]) for i in chunks)
        drafts = self.acceptance.draw(running.natures[rows], produced, self.rng)
        return Batch(
            requests=[running.requests[i] for i in rows.tolist()] if chunks else running.requests,
            classes=running.classes[rows],
            contexts=contexts,
            drafts=drafts.capped(np.minimum(running.outputs[rows] - produced - 1, left // max(len(rows), 1))),
            context=int(contexts.sum()) + reading,
            prefill=sum(chunks.values()),
            sequences=len(rows) + len(chunks),
            waiting=len(self.waiting),
        )

    def _advance(self, planned: Planned) -> None:
        lens, rows = planned.decided.verify_lens, planned.rows
        accepted = np.minimum(planned.batch.drafts.right, lens)
        emitted = np.minimum(accepted + 1, self.running.outputs[rows] - self.running.produced[rows])
        self.running.produced[rows] += emitted
        self.tokens += int(emitted.sum())
        self.verified += int(lens.sum())
        self.drafted_rows += int(np.count_nonzero(lens))
        self.rule.observe(planned.batch, planned.decided, Outcome(accepted, planned.ms))


@dataclass(frozen=True, slots=True)
class Planned:
    """A step on its way. rows: running requests that decode. chunks: prompt tokens by running request."""

    ends_s: float
    ms: float
    rows: IntArray
    chunks: dict[int, int]
    batch: Batch
    decided: Decided
