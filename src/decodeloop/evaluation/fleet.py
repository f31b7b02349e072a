"""One replica of a simulated fleet: continuous batching, chunked prefill, speculation by a rule."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decodeloop.evaluation.workload import Arrival
from decodeloop.types import CostModel, FloatArray, RequestClass

Ints = npt.NDArray[np.integer[Any]]
CLASSES = tuple(RequestClass)
CLASS_INDEX = {request_class: i for i, request_class in enumerate(CLASSES)}


class Rule(Protocol):
    """How much a simulated engine drafts and verifies."""

    def lens(self, classes: Ints, context: int, prefill: int) -> tuple[Ints, float]:
        """([n] verify lengths, ms spent on drafting) for decoding requests of these classes.

        context: cached tokens in all. prefill: prompt tokens that share the step.
        """
        ...


@dataclass(slots=True)
class Served:
    """A request's fate. Times in seconds of the simulation; tpot without the first token."""

    arrival: Arrival
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
class Limits:
    max_sequences: int = 256
    prefill_chunk: int = 2048


@dataclass(slots=True)
class Replica:
    """prefills, decodes: which halves of a request it serves (both, unless the fleet is split)."""

    cost: CostModel
    rule: Rule
    survival: FloatArray  # [classes, K]
    limits: Limits
    rng: np.random.Generator
    prefills: bool = True
    decodes: bool = True
    waiting: deque[Served] = field(default_factory=deque)
    running: list[Served] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)  # prompt tokens still to read, per running request
    produced: list[int] = field(default_factory=list)
    busy_s: float = 0.0
    steps: int = 0
    tokens: int = 0
    verified: int = 0
    drafted_rows: int = 0

    @property
    def load(self) -> int:
        return len(self.running) + len(self.waiting)

    @property
    def idle(self) -> bool:
        return not self.running and not self.waiting

    def begin(self, now_s: float) -> _Planned:
        """Plan the next step; it ends at `ends_s`, and `finish` takes it in."""
        while self.waiting and len(self.running) < self.limits.max_sequences:
            request = self.waiting.popleft()
            self.running.append(request)
            self.pending.append(request.arrival.prompt_tokens if self.prefills else 0)
            self.produced.append(0 if self.prefills else 1)
        chunks, budget = {}, self.limits.prefill_chunk
        for i, left in enumerate(self.pending):
            if left and budget:
                chunks[i] = min(left, budget)
                budget -= chunks[i]
        rows = [i for i, left in enumerate(self.pending) if not left]
        prefill = sum(chunks.values())
        context = self._context()
        classes = np.array([CLASS_INDEX[self.running[i].arrival.request_class] for i in rows], dtype=np.int64)
        lens, draft_ms = self.rule.lens(classes, context, prefill) if rows else (np.zeros(0, np.int64), 0.0)
        tokens = prefill + len(rows) + int(lens.sum())
        ms = draft_ms + self.cost.step_ms(tokens, context, len(rows) + len(chunks))
        return _Planned(now_s + ms / 1e3, rows, classes, lens, chunks)

    def finish(self, planned: _Planned, now_s: float, started_s: float) -> list[Served]:
        """Returns the requests that leave the replica: finished, or read and due elsewhere."""
        self.busy_s += now_s - started_s
        self.steps += 1
        self._advance(planned, now_s)
        leaving = set()
        for i, chunk in planned.chunks.items():
            self.pending[i] -= chunk
            if not self.pending[i]:
                self.produced[i] = 1
                self.running[i].first_token_s = now_s
                self.tokens += 1
                if not self.decodes:
                    leaving.add(i)
        for i, request in enumerate(self.running):
            if self.produced[i] >= request.arrival.output_tokens:
                request.finished_s = now_s
                leaving.add(i)
        gone = [self.running[i] for i in sorted(leaving)]
        for i in sorted(leaving, reverse=True):
            del self.running[i], self.pending[i], self.produced[i]
        return gone

    def _advance(self, planned: _Planned, now_s: float) -> None:
        if not planned.rows:
            return
        reach = np.arange(self.survival.shape[1]) < planned.lens[:, None]
        survives = self.rng.random(len(planned.rows))[:, None] < self.survival[planned.classes]
        emitted = 1 + (survives & reach).sum(axis=1)
        for i, count in zip(planned.rows, emitted.tolist(), strict=True):
            left = self.running[i].arrival.output_tokens - self.produced[i]
            self.produced[i] += min(count, left)
            self.tokens += min(count, left)
        self.verified += int(planned.lens.sum())
        self.drafted_rows += int(np.count_nonzero(planned.lens))

    def _context(self) -> int:
        return sum(
            request.arrival.prompt_tokens - left + made
            for request, left, made in zip(self.running, self.pending, self.produced, strict=True)
        )


@dataclass(frozen=True, slots=True)
class _Planned:
    ends_s: float
    rows: list[int]
    classes: Ints
    lens: Ints
    chunks: dict[int, int]
