"""Ask an engine from the same process: whole answers, without HTTP."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from decodeloop.engine.build import EmbeddedEngine
from decodeloop.engine.intake import Prepared
from decodeloop.engine.job import Job, Reader
from decodeloop.types import Chunk, FinishReason, Report, Request, RequestRefused, TokenLogprob, Usage


@dataclass(slots=True)
class Answer:
    """What came back for one request. Per choice: text, token ids, log-probabilities if asked, why it ended."""

    request: Request
    texts: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprob]] = field(default_factory=dict)
    finish_reasons: dict[int, FinishReason] = field(default_factory=dict)
    usage: Usage | None = None
    report: Report | None = None
    error: RequestRefused | None = None

    def add(self, chunk: Chunk) -> None:
        self.texts[chunk.index] = self.texts.get(chunk.index, "") + chunk.reasoning + chunk.text
        self.token_ids.setdefault(chunk.index, []).extend(chunk.token_ids)
        self.logprobs.setdefault(chunk.index, []).extend(chunk.logprobs)
        if chunk.finish_reason is not None:
            self.finish_reasons[chunk.index] = chunk.finish_reason
        self.usage, self.report = chunk.usage or self.usage, chunk.report or self.report


def ask(engine: EmbeddedEngine, requests: Sequence[Request], *, at_once: int) -> list[Answer]:
    """Answers in the order of `requests`, at most `at_once` of them running. The worker must have been started.

    A refused or failed request has its `error`; the others are not affected.
    """
    places = threading.Semaphore(at_once)
    collectors = []
    for request in requests:
        places.acquire()
        collector = _Collector(request, places)
        collectors.append(collector)
        submit(engine, request, collector)
    for collector in collectors:
        collector.over.wait()
    return [collector.answer for collector in collectors]


def submit(engine: EmbeddedEngine, request: Request, reader: Reader) -> None:
    """Start one request; `reader` hears everything, a refusal included."""
    try:
        prepared = engine.intake.prepare(request)
    except RequestRefused as error:
        reader.fail(error)
        return
    engine.worker.submit(partial(_open, engine, prepared, reader), reader.fail)


def _open(engine: EmbeddedEngine, prepared: Prepared, reader: Reader) -> Job:
    return Job(prepared.request, lambda choice: engine.intake.open(prepared, choice), reader)


class _Collector:
    """A Reader that keeps everything and gives its place to the next request when the answer is over."""

    def __init__(self, request: Request, places: threading.Semaphore) -> None:
        self.answer, self.over, self._places = Answer(request), threading.Event(), places

    def put(self, chunks: Sequence[Chunk]) -> None:
        for chunk in chunks:
            self.answer.add(chunk)

    def end(self) -> None:
        self.over.set()
        self._places.release()

    def fail(self, error: RequestRefused) -> None:
        self.answer.error = error
        self.end()
