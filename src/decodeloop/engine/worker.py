"""The one thread that owns the model. Others talk to it through an inbox."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from functools import partial

from decodeloop.engine.job import Job
from decodeloop.engine.sequence import Sequence
from decodeloop.engine.step import Engine, Outcome, failure
from decodeloop.types import Load, RequestRefused, StepRecord

log = logging.getLogger(__name__)

Task = Callable[[], None]


class Worker:
    """Runs steps while there is work, and sleeps while there is none.

    observers see every StepRecord, on the worker's thread.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        clock: Callable[[], float],
        observers: tuple[Callable[[StepRecord], None], ...] = (),
    ) -> None:
        self._engine, self._clock, self._observers = engine, clock, observers
        self._inbox: queue.SimpleQueue[Task] = queue.SimpleQueue()
        self._jobs: dict[int, Job] = {}  # by sequence id
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="decodeloop-worker", daemon=True)
        self._load = Load(0, 0, 0, 1.0)

    def start(self) -> None:
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Let running requests end for `timeout_s`, then end them; returns when the thread is gone."""
        self._inbox.put(self._begin_stop)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            self._inbox.put(self._abort_all)
            self._thread.join()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._stopping

    @property
    def load(self) -> Load:
        """As of the last step."""
        return self._load

    def submit(self, open_job: Callable[[], Job], refused: Callable[[RequestRefused], None]) -> None:
        """Queue a job, built on the worker's thread; `refused` hears if it cannot be queued."""
        self._inbox.put(lambda: self._admit(open_job, refused))

    def abort(self, find_job: Callable[[], Job | None]) -> None:
        """End a job. `find_job` runs after every task queued before, hence also finds one that is just being opened."""
        self._inbox.put(lambda: self._abort(find_job()))

    def call(self, task: Task) -> None:
        """Run `task` between two steps."""
        self._inbox.put(task)

    def _run(self) -> None:
        while True:
            self._read_inbox()
            scheduler = self._engine.scheduler
            if not scheduler.running and not scheduler.waiting:
                if self._stopping:
                    return
                continue
            try:
                self._pass_on(self._engine.step())
            except Exception as error:
                log.exception("a step failed")
                self._fail_all(error)

    def _read_inbox(self) -> None:
        scheduler = self._engine.scheduler
        idle = not scheduler.running and not scheduler.waiting and not self._stopping
        if idle:
            self._load = scheduler.load(self._clock())
            self._do(self._inbox.get())
        while not self._inbox.empty():
            self._do(self._inbox.get())

    def _do(self, task: Task) -> None:
        try:
            task()
        except Exception:
            log.exception("a task on the worker failed")

    def _pass_on(self, outcome: Outcome) -> None:
        for said in outcome.said:
            job = self._jobs.get(said.sequence.id)
            if job is None:  # another choice of it failed in this step
                continue
            if said.sequence.error is not None:
                self._fail(job, said.sequence.error)
                continue
            job.say(said.sequence, said.chunks)
            if said.sequence.finish_reason is not None:
                del self._jobs[said.sequence.id]
            for sibling in job.open_siblings():
                self._jobs[sibling.id] = job
                self._engine.scheduler.submit_sibling(sibling, self._clock())
        if outcome.record is not None:
            self._load = outcome.record.load
            for observer in self._observers:
                self._do(partial(observer, outcome.record))

    def _admit(self, open_job: Callable[[], Job], refused: Callable[[RequestRefused], None]) -> None:
        if self._stopping:
            refused(RequestRefused("the server is shutting down", status=503, code="shutting_down"))
            return
        try:
            job = open_job()
            first = job.sequences[0]
            self._engine.scheduler.submit(first, self._clock())
        except RequestRefused as error:
            refused(error)
        except Exception as error:
            log.exception("a request could not be opened")
            refused(RequestRefused(f"the engine could not open the request: {error}", status=500))
        else:
            self._jobs[first.id] = job

    def _abort(self, job: Job | None) -> None:
        if job is None:
            return
        job.ended = True
        for sequence in job.sequences:
            self._drop(sequence)

    def _drop(self, sequence: Sequence) -> None:
        if self._jobs.pop(sequence.id, None) is not None and sequence.finish_reason is None:
            self._engine.abort(sequence)

    def _fail(self, job: Job, error: RequestRefused) -> None:
        job.fail(error)
        self._abort(job)

    def _fail_all(self, error: Exception) -> None:
        for job in {id(job): job for job in self._jobs.values()}.values():
            self._do(partial(self._fail, job, failure(error)))

    def _begin_stop(self) -> None:
        self._stopping = True

    def _abort_all(self) -> None:
        for job in {id(job): job for job in self._jobs.values()}.values():
            job.fail(RequestRefused("the server is shutting down", status=503, code="shutting_down"))
            self._abort(job)
