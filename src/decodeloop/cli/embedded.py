"""An engine in this process as something to be measured: no HTTP between the load and the steps."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from decodeloop.engine.build import EmbeddedEngine
from decodeloop.engine.intake import Prepared
from decodeloop.engine.job import Job
from decodeloop.evaluation.client.answer import Answer, CutOff
from decodeloop.evaluation.client.http import clock
from decodeloop.evaluation.client.target import merged
from decodeloop.evaluation.results import Drafting, PhaseTimes
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.parse import Arrival, parse_chat, parse_completion
from decodeloop.types import Chunk, Identity, Report, Request, RequestRefused

LIMITS = Limits()
_numbers = itertools.count(1)


class EmbeddedTarget:
    """An arm of an engine. Each arm is an organization of its own: no drafter remembers another arm's answers."""

    def __init__(self, engine: EmbeddedEngine, label: str, fields: Mapping[str, Any]) -> None:
        self.engine, self._label, self._fields = engine, label, fields

    async def serve(self, request: WorkRequest) -> Answer:
        reader = _Reader(asyncio.get_running_loop(), clock())
        try:
            prepared = await asyncio.to_thread(self.prepare, request)
        except RequestRefused as error:
            return Answer(sent_s=reader.sent_s, ended_s=clock(), error=f"{error.status}: {error.message}")
        intake = self.engine.intake

        def opened() -> Job:
            reader.job = Job(prepared.request, lambda choice: intake.open(prepared, choice), reader)
            return reader.job

        self.engine.worker.submit(opened, reader.fail)
        try:
            await reader.over
        except asyncio.CancelledError:
            self.engine.worker.abort(lambda: reader.job)
            raise CutOff(reader.answer(clock())) from None
        return reader.answer(reader.ended_s)

    async def reset(self) -> str:
        done = asyncio.get_running_loop().create_future()
        loop = asyncio.get_running_loop()

        def forget() -> None:
            self.engine.engine.scheduler.cache.reset_prefixes()
            loop.call_soon_threadsafe(done.set_result, None)

        self.engine.worker.call(forget)
        await done
        return "emptied"

    async def counters(self) -> Mapping[str, float]:
        totals = self.engine.counters()
        return {f"decodeloop_engine_{name}": float(value) for name, value in totals.items() if "_total" in name}

    def close(self) -> None:
        """The engine is its maker's to close: arms share it."""

    def prepare(self, request: WorkRequest) -> Prepared:
        """As the engine would take it in. Raises RequestRefused."""
        text = {"messages": request.messages} if request.prompt is None else {"prompt": request.prompt}
        declared = {"decodeloop": {"class": str(request.request_class)}}
        body = {**text, **merged(request.params, merged(declared, self._fields))}
        parse = parse_chat if request.prompt is None else parse_completion
        arrival = Arrival(id=f"bench-{next(_numbers)}", default_model=self.engine.name, identity=Identity(self._label))
        (asked,) = parse(orjson.dumps(body), arrival, LIMITS).requests
        return self.engine.intake.prepare(_now(asked))


def _now(request: Request) -> Request:
    return replace(request, arrived_s=time.monotonic())


@dataclass(slots=True)
class _Reader:
    """Collects an answer on the engine's thread, each step's tokens with their time."""

    loop: asyncio.AbstractEventLoop
    sent_s: float
    over: asyncio.Future[None] = field(init=False)
    ended_s: float = 0.0
    job: Job | None = None
    said: list[tuple[float, Sequence[Chunk]]] = field(default_factory=list)
    error: RequestRefused | None = None

    def __post_init__(self) -> None:
        self.over = self.loop.create_future()

    def put(self, chunks: Sequence[Chunk]) -> None:
        self.said.append((clock(), chunks))

    def end(self) -> None:
        self.ended_s = clock()
        with suppress(RuntimeError):  # the event loop is gone
            self.loop.call_soon_threadsafe(self._tell)

    def fail(self, error: RequestRefused) -> None:
        self.error = error
        self.end()

    def _tell(self) -> None:
        if not self.over.done():
            self.over.set_result(None)

    def answer(self, ended_s: float) -> Answer:
        sized = [(at_s, sum(len(chunk.token_ids) for chunk in chunks)) for at_s, chunks in self.said]
        stamped = [(at_s, size) for at_s, size in sized if size]
        chunks = [chunk for _, part in self.said for chunk in part]
        usage = next((chunk.usage for chunk in reversed(chunks) if chunk.usage), None)
        report = next((chunk.report for chunk in reversed(chunks) if chunk.report), None)
        finish = next((chunk.finish_reason for chunk in reversed(chunks) if chunk.finish_reason), None)
        return Answer(
            sent_s=self.sent_s,
            ended_s=ended_s,
            chunk_s=tuple(at_s for at_s, _ in stamped),
            chunk_tokens=tuple(size for _, size in stamped),
            prompt_tokens=usage.prompt if usage else None,
            cached_tokens=usage.cached if usage else None,
            completion_tokens=usage.completion if usage else sum(size for _, size in stamped),
            drafting=None if report is None else drafting_of(report),
            drafter=report.drafter if report else None,
            times=None if report is None else PhaseTimes(**{name: getattr(report, name) for name in TIMES}),
            seed=report.seed if report else None,
            finish_reason=None if finish is None else str(finish),
            error=None if self.error is None else f"{self.error.status}: {self.error.message}",
            text="".join(chunk.reasoning + chunk.text + _calls(chunk) for chunk in chunks),
            token_ids=tuple(id for chunk in chunks for id in chunk.token_ids),
        )


TIMES = ("queue_ms", "prefill_ms", "draft_ms", "verify_ms", "sample_ms", "overhead_ms")


def drafting_of(report: Report) -> Drafting:
    accepted, verified = report.accepted_per_step, report.verified_per_step
    return Drafting(
        drafts=len(verified),
        verified=report.verified,
        accepted=report.accepted,
        drafted=report.drafted,
        steps=report.steps,
        discarded=report.discarded,
        accepted_histogram=_histogram(accepted),
        verified_histogram=_histogram(verified),
    )


def _histogram(counts: Sequence[int]) -> tuple[int, ...]:
    return tuple(counts.count(value) for value in range(max(counts, default=-1) + 1))


def _calls(chunk: Chunk) -> str:
    return "".join((call.name or "") + call.arguments for call in chunk.tool_calls)
