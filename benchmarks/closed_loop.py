"""Keeps a number of requests running on an engine, for benchmarks that look at a load and not at arrivals."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from decodeloop.engine.build import EmbeddedEngine, build_engine, choose_runner, open_drafters, open_policy
from decodeloop.engine.intake import Prepared
from decodeloop.engine.job import Job
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.profile import measure as measure_costs
from decodeloop.engine.proposals import Proposers
from decodeloop.engine.scheduler import Scheduler
from decodeloop.engine.settings import EngineSettings
from decodeloop.gateway.server import settle_garbage
from decodeloop.policy import Policy
from decodeloop.policy.cost import CostSurface
from decodeloop.speculation import Drafter
from decodeloop.types import Chunk, Request, RequestRefused, Slo, StepRecord

MEASURING_S = 10.0  # of step costs


@dataclass(frozen=True)
class Answer:
    """What came of a request that was not cut off. request_id: of what was asked, not the id that it ran under. Times
    are of its arm's own clock."""

    request_id: str
    token_ids: tuple[int, ...]
    tpot_ms: float  # from the first chunk to the last, a token after those of the first
    ended_s: float
    slo: Slo = Slo()


@dataclass(frozen=True)
class Served:
    """records: of the steps at full load. seconds: from the first one's start to the end of the last."""

    records: Sequence[StepRecord]
    seconds: float
    answers: Sequence[Answer]

    @property
    def tokens(self) -> int:
        return sum(row.emitted for record in self.records for row in record.rows)


class OwnTime:
    """Seconds that pass for one arm at a time. For an arm that waits for its turn the clock stands still: what its
    steps, its policy and its answers take is as if it had the machine for itself."""

    def __init__(self) -> None:
        self._behind_s = 0.0  # the clock at hand, behind the machine's
        self._whose: object = None
        self._stopped_s: dict[object, float] = {}

    def __call__(self) -> float:
        return time.perf_counter() - self._behind_s

    def go_on(self, whose: object) -> None:
        """From here on it is this arm's time."""
        if whose is not self._whose:
            self._stopped_s[self._whose] = self()
            self._behind_s = time.perf_counter() - self._stopped_s.get(whose, 0.0)
            self._whose = whose


class ClosedLoop:
    """An arm under a constant load: a request that ends is followed by the next of the stream at once."""

    def __init__(
        self, engine: EmbeddedEngine, policy: Policy, proposers: Proposers, scheduler: Scheduler, clock: OwnTime
    ) -> None:
        self.engine, self.clock = engine, clock
        self._policy, self._proposers, self._scheduler = policy, proposers, scheduler
        self.observer: Callable[[StepRecord], None] | None = None  # of the engine's steps
        self._numbers = itertools.count()

    def describe(self) -> Mapping[str, Any]:
        """What its policy believes."""
        return self._policy.describe()

    def serve(self, stream: Iterator[Prepared], load: int, enough: Callable[[Served], bool]) -> Served:
        """Until `enough` of the steps at full load, then what still runs is dropped."""
        self._between_steps(self.take)
        turn = _Turn(self, stream, load, enough)
        self.observer = turn.observe
        self._between_steps(lambda: [turn.next() for _ in range(load)])  # all of them before the first step
        turn.over.wait()
        self.drop(turn.jobs)
        self.observer = None
        if turn.refused is not None:
            raise turn.refused
        return turn.served()

    def take(self) -> None:
        """The engine's next steps are this arm's. Called between two steps."""
        self.clock.go_on(self)
        engine = self.engine.engine
        engine.policy, engine.proposers, engine.scheduler = self._policy, self._proposers, self._scheduler

    def drop(self, jobs: Collection[Job]) -> None:
        """End what still runs. Only its own scheduler can."""
        self._between_steps(self.take)
        for job in list(jobs):
            self.engine.worker.abort(partial(_found, job))
        self._between_steps(lambda: None)

    def _between_steps(self, task: Callable[[], object]) -> None:
        done = threading.Event()
        self.engine.worker.call(task)
        self.engine.worker.call(done.set)
        done.wait()

    def submit(self, prepared: Prepared, reader: Listener) -> None:
        request = replace(prepared.request, id=f"{next(self._numbers)}/{prepared.request.id}")
        numbered = replace(prepared, request=request)
        engine = self.engine

        def opened() -> Job:
            reader.job = Job(numbered.request, lambda choice: engine.intake.open(numbered, choice), reader)
            return reader.job

        engine.worker.submit(opened, reader.fail)


class Listening(Protocol):
    """Whose requests they are."""

    jobs: set[Job]
    loop: ClosedLoop

    def ended(self, job: Job | None, answer: Answer) -> None: ...

    def failed(self, error: RequestRefused) -> None: ...


class _Turn:
    def __init__(
        self, loop: ClosedLoop, stream: Iterator[Prepared], load: int, enough: Callable[[Served], bool]
    ) -> None:
        self.loop, self._stream, self._load, self._enough = loop, stream, load, enough
        self._records: list[StepRecord] = []
        self._answers: list[Answer] = []
        self._end_s: float | None = None
        self.jobs: set[Job] = set()
        self.over = threading.Event()
        self.refused: RequestRefused | None = None
        self._done = False

    def observe(self, record: StepRecord) -> None:
        if self.over.is_set():
            return
        if self._done:
            self._end_s = record.at_s
            self.over.set()
        elif self._records or sum(not row.prefill_tokens for row in record.rows) >= self._load:
            self._records.append(record)
            self._done = self._enough(self.served())

    def next(self) -> None:
        prepared = next(self._stream)
        self.loop.submit(prepared, Listener(self, prepared.request))

    def ended(self, job: Job | None, answer: Answer) -> None:
        if job is not None:
            self.jobs.discard(job)
        self._answers.append(answer)
        if not self.over.is_set():
            self.next()

    def failed(self, error: RequestRefused) -> None:
        self.refused = error
        self.over.set()

    def served(self) -> Served:
        records = self._records
        if not records:
            return Served((), 0.0, tuple(self._answers))
        end_s = records[-1].at_s + records[-1].step_ms / 1e3 if self._end_s is None else self._end_s
        return Served(records, end_s - records[0].at_s, self._answers)


class Listener:
    """Reads one answer."""

    def __init__(self, turn: Listening, request: Request) -> None:
        self._turn, self._request = turn, request
        self._tokens: list[int] = []
        self._first: tuple[float, int] | None = None
        self._last_s = 0.0
        self._job: Job | None = None

    @property
    def job(self) -> Job | None:
        return self._job

    @job.setter
    def job(self, job: Job) -> None:
        self._job = job
        self._turn.jobs.add(job)

    def put(self, chunks: Sequence[Chunk]) -> None:
        self._last_s = self._turn.loop.clock()
        for chunk in chunks:
            self._tokens += chunk.token_ids
        if self._first is None and self._tokens:
            self._first = self._last_s, len(self._tokens)

    def end(self) -> None:
        first_s, first_tokens = self._first or (self._last_s, 0)
        later = len(self._tokens) - first_tokens
        tpot_ms = 1e3 * (self._last_s - first_s) / later if later else 0.0
        tokens, slo = tuple(self._tokens), self._request.slo
        self._turn.ended(self._job, Answer(self._request.id, tokens, tpot_ms, self._last_s, slo))

    def fail(self, error: RequestRefused) -> None:
        self._turn.failed(error)


def _found(job: Job) -> Job:
    return job


class Arms:
    """One engine whose policy and drafters are changed from turn to turn: arms share weights, threads, measured costs,
    KV memory and the prompts cached in it, so that they differ in nothing else, not even in the pages of their memory.
    """

    def __init__(self, checkpoint: Checkpoint, settings: EngineSettings) -> None:
        """Step costs are measured here, while the KV memory holds nothing."""
        self._checkpoint, self._settings = checkpoint, settings
        self.runner = choose_runner(checkpoint, settings).runner
        self.loops: dict[str, ClosedLoop] = {}
        self._clock = OwnTime()
        self._engine = build_engine(
            checkpoint,
            replace(settings, policy="off"),
            clock=self._clock,
            name="model",
            runner=self.runner,
            observers=(self._observe,),
        )
        memory = self._engine.memory
        self._surface = measure_costs(
            self.runner,
            settings,
            kv_blocks=memory.kv_blocks,
            max_context=memory.max_context,
            clock=time.perf_counter,
            budget_s=MEASURING_S,
        )
        settle_garbage()  # as the server does
        self._engine.worker.start()

    def open(
        self, name: str, policy: str, *, extra_drafters: Mapping[str, Drafter] | None = None, **changes: Any
    ) -> ClosedLoop:
        """changes: of the policy's and the drafters' settings."""
        settings = replace(self._settings, policy=policy, **changes)
        verifier, max_context = self._engine.engine.verifier, self._engine.memory.max_context
        deciding = open_policy(settings, verifier, self.costs)
        playing = open_drafters(self._checkpoint, settings, self.runner, max_context)
        shadow_len = settings.shadow_len
        if shadow_len is None:
            shadow_len = settings.max_draft_len if deciding.learns else 0
        proposers = Proposers(
            {**playing, **(extra_drafters or {})}, shadow_len=shadow_len, shares_noise=verifier.shares_noise
        )
        scheduler = Scheduler(self._engine.engine.scheduler.cache, settings, max_context)
        self.loops[name] = ClosedLoop(self._engine, deciding, proposers, scheduler, self._clock)
        return self.loops[name]

    def costs(self) -> CostSurface:
        """A copy of what was measured; each arm learns on from its own."""
        return CostSurface.from_json(self._surface.to_json())

    def close(self) -> None:
        self._engine.close(1.0)

    def _observe(self, record: StepRecord) -> None:
        for loop in self.loops.values():
            observer = loop.observer  # another thread takes it away
            if observer is not None:
                observer(record)
