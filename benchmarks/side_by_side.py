"""Arms under one constant load, a slice of each in turn: what the host does meanwhile, it does to all of them.

A shared host's speed wanders, by the more the longer one looks: with turns of a second two equal arms differ by some
4 %, with slices of 40 ms as much time of each gives them a third of that. The arm that has said least goes on next, so
all of them say the same at about the same time, and come to the end together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from functools import partial

from closed_loop import Answer, ClosedLoop, Listener, Served

from decodeloop.engine.intake import Prepared
from decodeloop.engine.job import Job
from decodeloop.types import RequestRefused, StepRecord

SLICE_S = 0.04
SLICE_STEPS = 3  # at least


class Lane:
    """One arm's share of it. Time counts from the first step at full load on, and only while the arm runs."""

    def __init__(self, loop: ClosedLoop, stream: Iterator[Prepared], load: int) -> None:
        self.loop = loop
        self._stream, self._load = stream, load
        self.records: list[StepRecord] = []
        self.answers: list[Answer] = []
        self.jobs: set[Job] = set()
        self.tokens, self.seconds = 0, 0.0
        self.refused: RequestRefused | None = None
        self._slice_s = 0.0  # its start
        self._slice_steps = 0
        self._runs = self.closed = False

    def begin(self) -> None:
        """Its slice. Called on the engine's thread, as everything below."""
        self.loop.take()
        self._slice_s, self._slice_steps = self.loop.clock(), 0
        if not self._runs:
            self._runs = True
            for _ in range(self._load):
                self._next()

    def observe(self, record: StepRecord) -> None:
        if not self.records and sum(not row.prefill_tokens for row in record.rows) < self._load:
            return
        self.records.append(record)
        self.tokens += sum(row.emitted for row in record.rows)
        self._slice_steps += 1

    def pause(self) -> None:
        if self.records:
            self.seconds = self.loop.clock() - self.records[0].at_s

    def rests(self) -> bool:
        """Whether its slice is over."""
        if not self.records or self._slice_steps < SLICE_STEPS:
            return False
        return self.loop.clock() - max(self._slice_s, self.records[0].at_s) >= SLICE_S

    def ended(self, job: Job | None, answer: Answer) -> None:
        if job is not None:
            self.jobs.discard(job)
        if not self.closed:
            self.answers.append(answer)
            self._next()

    def failed(self, error: RequestRefused) -> None:
        self.refused = error

    def served(self) -> Served:
        return Served(self.records, self.seconds, self.answers)

    def _next(self) -> None:
        prepared = next(self._stream)
        self.loop.submit(prepared, Listener(self, prepared.request))


class SideBySide:
    """Lanes of loops of one engine, until each has said `tokens`."""

    def __init__(self, lanes: Mapping[str, Lane], tokens: int) -> None:
        self._lanes, self._tokens = lanes, tokens
        self._running = next(iter(lanes.values()))
        self._turns = {id(lane): turn for turn, lane in enumerate(lanes.values())}  # when each went on last
        self._over = threading.Event()

    def serve(self) -> dict[str, Served]:
        """Raises RuntimeError when a request of any lane is refused."""
        first = self._running.loop
        first.observer = self._observe
        first.engine.worker.call(partial(self._go_on, self._running))
        while not self._over.wait(1.0):
            if any(lane.refused is not None for lane in self._lanes.values()):
                break
        first.observer = None
        for name, lane in self._lanes.items():
            lane.loop.drop(lane.jobs)
            if lane.refused is not None:
                raise RuntimeError(f"{name}: a request was refused") from lane.refused
        return {name: lane.served() for name, lane in self._lanes.items()}

    def _observe(self, record: StepRecord) -> None:
        if self._over.is_set():
            return
        lane = self._running
        lane.observe(record)
        if lane.refused is not None or lane.tokens >= self._tokens or lane.rests():
            # Behind what the lane's ended answers have put in the inbox: its next requests.
            lane.loop.engine.worker.call(self._switch)

    def _switch(self) -> None:
        self._running.pause()
        behind = [lane for lane in self._lanes.values() if lane.tokens < self._tokens]
        if not behind or self._running.refused is not None:
            for lane in self._lanes.values():
                lane.closed = True
            self._over.set()
            return
        self._go_on(min(behind, key=lambda lane: (lane.tokens, self._turns[id(lane)])))

    def _go_on(self, lane: Lane) -> None:
        self._turns[id(lane)] = max(self._turns.values()) + 1
        self._running = lane
        lane.begin()


def serve_side_by_side(
    loops: Mapping[str, ClosedLoop], streams: Mapping[str, Iterator[Prepared]], *, load: int, tokens: int
) -> dict[str, Served]:
    """`tokens` of each arm at this load. loops: of one engine. streams: each arm's requests."""
    return SideBySide({name: Lane(loop, streams[name], load) for name, loop in loops.items()}, tokens).serve()
