"""The embedded engine as an upstream of the gateway: requests in from the event loop, chunks back to it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, suppress
from dataclasses import asdict, replace
from typing import Any

from decodeloop.engine.build import EmbeddedEngine
from decodeloop.engine.intake import Prepared
from decodeloop.engine.job import Job
from decodeloop.governance.certificate import Regime
from decodeloop.types import ChatPrompt, Chunk, Load, ModelCard, Request, RequestRefused

DRAIN_S = 10.0
INTAKE_THREADS = 4  # that a long text holds up no other


class EmbeddedUpstream:
    """Implements the gateway's Upstream contract over one engine."""

    def __init__(self, engine: EmbeddedEngine, *, created: int, regime: Callable[[], Regime] | None = None) -> None:
        """regime: reads what certificates are about; slow, hence beside the start; `describe` says null until then."""
        self._engine = engine
        self._read_regime = regime
        self._regime: asyncio.Task[Regime] | None = None
        self._card = ModelCard(engine.name, created, engine.max_context)
        self._texts = ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="decodeloop-intake")
        # Compiling a hostile grammar takes seconds: it delays other grammars, and no plain request.
        self._grammars = ThreadPoolExecutor(INTAKE_THREADS, thread_name_prefix="decodeloop-grammar")

    async def start(self) -> None:
        self._engine.worker.start()
        if self._read_regime is not None:
            self._regime = asyncio.create_task(asyncio.to_thread(self._read_regime))

    async def close(self) -> None:
        if self._regime is not None:
            self._regime.cancel()
        await asyncio.to_thread(self._engine.close, DRAIN_S)
        for pool in (self._texts, self._grammars):
            await asyncio.to_thread(pool.shutdown, cancel_futures=True)

    def ready(self) -> bool:
        return self._engine.worker.alive

    def models(self) -> Sequence[ModelCard]:
        return (self._card,)

    def load(self) -> Load:
        return self._engine.worker.load

    def counters(self) -> Mapping[str, float]:
        return self._engine.counters()

    def describe(self) -> Mapping[str, Any]:
        reading = self._regime
        if reading is None or (reading.done() and (reading.cancelled() or reading.exception() is not None)):
            return self._engine.describe()
        return {**self._engine.describe(), "regime": asdict(reading.result()) if reading.done() else None}

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        loop = asyncio.get_running_loop()
        pool = self._grammars if is_constrained(request) else self._texts
        prepared = await loop.run_in_executor(pool, self._engine.intake.prepare, request)
        answer = Answer(loop)
        self._engine.worker.submit(lambda: self._open(prepared, answer), answer.fail)
        try:
            async with aclosing(answer.chunks()) as chunks:
                async for chunk in chunks:
                    yield chunk
        finally:
            if not answer.ended:
                self._engine.worker.abort(lambda: answer.job)

    def _open(self, prepared: Prepared, answer: Answer) -> Job:
        answer.job = Job(prepared.request, lambda choice: self._engine.intake.open(prepared, choice), answer)
        return answer.job


def is_constrained(request: Request) -> bool:
    """Whether a grammar may have to be compiled for it."""
    tools = isinstance(request.prompt, ChatPrompt) and bool(request.prompt.tools)
    return tools or request.params.grammar is not None


class Answer:
    """Carries chunks from the engine's thread to the event loop; what a slow reader left is merged, not queued.

    Bounded by the answer itself: at most its whole text waits here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived = asyncio.Event()
        self._chunks: list[Chunk] = []
        self._error: RequestRefused | None = None
        self._done = False
        self.job: Job | None = None

    @property
    def ended(self) -> bool:
        return self._done

    def put(self, chunks: Sequence[Chunk]) -> None:
        self._tell(lambda: self._chunks.extend(chunks))

    def end(self) -> None:
        self._tell(self._set_done)

    def fail(self, error: RequestRefused) -> None:
        self._tell(lambda: self._set_error(error))

    def _tell(self, change: Any) -> None:
        def on_loop() -> None:
            change()
            self._arrived.set()

        with suppress(RuntimeError):  # the event loop is gone, and the reader with it
            self._loop.call_soon_threadsafe(on_loop)

    def _set_done(self) -> None:
        self._done = True

    def _set_error(self, error: RequestRefused) -> None:
        self._error, self._done = error, True

    async def chunks(self) -> AsyncGenerator[Chunk, None]:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            chunks, self._chunks = self._chunks, []
            for chunk in merge(chunks):
                yield chunk
            if self._done and not self._chunks:
                if self._error is not None:
                    raise self._error
                return


def merge(chunks: Sequence[Chunk]) -> list[Chunk]:
    """Join neighbouring pieces of plain text of one choice; everything else keeps its place."""
    merged: list[Chunk] = []
    for chunk in chunks:
        last = merged[-1] if merged else None
        if last is not None and _joinable(last, chunk):
            merged[-1] = replace(
                last,
                text=last.text + chunk.text,
                reasoning=last.reasoning + chunk.reasoning,
                token_ids=last.token_ids + chunk.token_ids,
                logprobs=last.logprobs + chunk.logprobs,
            )
        else:
            merged.append(chunk)
    return merged


def _joinable(last: Chunk, chunk: Chunk) -> bool:
    same = last.index == chunk.index and last.finish_reason is None and chunk.finish_reason is None
    plain = not last.tool_calls and not chunk.tool_calls
    return same and plain and not (last.text and chunk.reasoning)
