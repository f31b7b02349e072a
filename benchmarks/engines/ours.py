"""Our engine in its own process.  ours.py MODEL DTYPE [THREADS]

Arms: plain; adaptive; "DRAFTER K", a fixed draft.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from lines import Block, Said, Work, serve

from decodeloop.engine.ask import submit
from decodeloop.engine.build import build_engine, choose_runner
from decodeloop.engine.memory import MemoryPlan
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.profile import measure
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import Runner
from decodeloop.types import (
    Chunk,
    CostModel,
    Identity,
    Request,
    RequestRefused,
    SamplingParams,
    Speculation,
    SpeculationMode,
)

STREAMS, CONTEXT = 16, 2048


class TimedReader:
    """Keeps an answer's tokens and when the first and the last came."""

    def __init__(self, places: threading.Semaphore) -> None:
        self.tokens: list[int] = []
        self.first, self.first_s, self.last_s = 0, 0.0, 0.0
        self.error: RequestRefused | None = None
        self.over = threading.Event()
        self._places = places

    def put(self, chunks: Sequence[Chunk]) -> None:
        self.tokens += [token for chunk in chunks for token in chunk.token_ids]
        self.last_s = time.perf_counter()
        if not self.first and self.tokens:
            self.first, self.first_s = len(self.tokens), self.last_s

    def end(self) -> None:
        self.over.set()
        self._places.release()

    def fail(self, error: RequestRefused) -> None:
        self.error = error
        self.end()

    def said(self) -> Said:
        if self.error is not None:
            raise self.error
        return Said(self.tokens, len(self.tokens) - self.first, self.last_s - self.first_s)


class Ours:
    """One engine for all arms. Each block is an organization: no drafter remembers answers to the same prompts."""

    def __init__(self, path: Path, dtype: str, threads: int) -> None:
        settings = EngineSettings(
            dtype=dtype,
            threads=threads,
            policy="adaptive",
            drafters=("ngram", "suffix"),
            max_context=CONTEXT,
            max_sequences=STREAMS,
            prefix_caching=False,
        )
        checkpoint = open_checkpoint(path)
        runner = choose_runner(checkpoint, settings).runner

        def costs(runner: Runner, memory: MemoryPlan) -> CostModel:
            blocks, context, clock = memory.kv_blocks, memory.max_context, time.perf_counter
            return measure(runner, settings, kv_blocks=blocks, max_context=context, clock=clock, budget_s=10.0)

        self._engine = build_engine(checkpoint, settings, clock=time.monotonic, runner=runner, measure=costs)
        self._engine.worker.start()
        self._asked = 0

    def __call__(self, work: Work) -> Block:
        self._asked += 1
        places, readers = threading.Semaphore(work.at_once), []
        started_s = time.perf_counter()
        for place, prompt in enumerate(work.prompts):
            places.acquire()
            reader = TimedReader(places)
            readers.append(reader)
            submit(self._engine, self._request(work, place, prompt), reader)
        for reader in readers:
            reader.over.wait()
        return Block(time.perf_counter() - started_s, [reader.said() for reader in readers])

    def _request(self, work: Work, place: int, prompt: list[int]) -> Request:
        return Request(
            id=f"{work.arm}-{place}",
            model="model",
            prompt=tuple(prompt),
            params=SamplingParams(temperature=0.0, max_tokens=work.tokens, ignore_eos=not work.ends),
            seed=1,
            speculation=speculation_of(work.arm),
            identity=Identity(f"{work.arm} {self._asked}"),
        )


def speculation_of(arm: str) -> Speculation:
    if arm == "plain":
        return Speculation(SpeculationMode.OFF)
    if arm == "adaptive":
        return Speculation()
    drafter, draft_len = arm.split()
    return Speculation(SpeculationMode.FORCE, int(draft_len), drafter)


if __name__ == "__main__":
    model, dtype, *threads = sys.argv[1:]
    serve(lambda: Ours(Path(model), dtype, int(threads[0]) if threads else 0))
