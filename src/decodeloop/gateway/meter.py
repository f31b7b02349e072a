"""What the gateway counts and times of the answers that pass through it."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from decodeloop.gateway.exchange import ClientGone
from decodeloop.gateway.telemetry import Times
from decodeloop.gateway.wire.accounts import summed_usage
from decodeloop.gateway.wire.events import Told
from decodeloop.types import Chunk, Report, Usage

__all__ = ["Histogram", "Meter", "ModelMeter", "RequestMeter"]

FAST_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.015,
    0.02,
    0.03,
    0.04,
    0.05,
    0.075,
    0.1,
    0.15,
    0.2,
    0.3,
    0.5,
    0.75,
    1,
    2.5,
    5,
    10,
)
SLOW_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 320, 640)

PHASES = ("queue", "prefill", "draft", "verify", "sample", "overhead")


class Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


@dataclass(slots=True)
class ModelMeter:
    """Totals of one model on one upstream; times in seconds."""

    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(SLOW_S))
    step_gap: Histogram = field(default_factory=lambda: Histogram(FAST_S))
    time_per_output_token: Histogram = field(default_factory=lambda: Histogram(FAST_S))
    latency: Histogram = field(default_factory=lambda: Histogram(SLOW_S))
    queue_time: Histogram = field(default_factory=lambda: Histogram(SLOW_S))
    finished: Counter[str] = field(default_factory=Counter)  # FinishReason, or how else a choice ended -> choices
    reasons: Counter[str] = field(default_factory=Counter)  # Reason -> steps
    phases: Counter[str] = field(default_factory=Counter)  # PHASES -> milliseconds
    accepted_per_position: Counter[int] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generation_tokens: int = 0
    drafts: int = 0  # that were verified
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    discarded: int = 0

    def add_usage(self, usage: Usage) -> None:
        self.prompt_tokens += usage.prompt
        self.cached_tokens += usage.cached

    def add_report(self, report: Report) -> None:
        self.queue_time.observe(report.queue_ms / 1e3)
        self.reasons.update(report.reasons)
        for phase in PHASES:
            self.phases[phase] += getattr(report, f"{phase}_ms")
        self.drafts += len(report.accepted_per_step)
        self.drafted += report.drafted
        self.verified += report.verified
        self.accepted += report.accepted
        self.discarded += report.discarded
        for accepted in report.accepted_per_step:
            for position in range(accepted):
                self.accepted_per_position[position] += 1


class RequestMeter:
    """Times one HTTP request's choices as their chunks come. Clock: monotonic seconds."""

    def __init__(self, model: ModelMeter, arrived_s: float, choices: int) -> None:
        self._model, self._arrived_s, self._open = model, arrived_s, choices
        self._choices: dict[int, _ChoiceTimes] = {}
        self.times = Times()

    def chunk(self, chunk: Chunk, now_s: float) -> None:
        if chunk.token_ids or chunk.text or chunk.reasoning or chunk.tool_calls:
            self._model.generation_tokens += len(chunk.token_ids)
            self._content(chunk.index, len(chunk.token_ids), now_s)
        if chunk.report is not None:
            self._model.add_report(chunk.report)
            self.times.report = chunk.report
            if chunk.usage is not None:
                self._model.add_usage(chunk.usage)
                self.times.usage = (
                    chunk.usage if self.times.usage is None else summed_usage([self.times.usage, chunk.usage])
                )
        if chunk.finish_reason is not None:
            self._finish(chunk.index, chunk.finish_reason, now_s)

    def relayed(self, told: Told, now_s: float) -> None:
        """An event of another engine, which doesn't say how many tokens it holds."""
        if told.content:
            self._content(told.choice, 0, now_s)
        for choice, reason in told.finished:
            self._finish(choice, reason, now_s)

    def relayed_usage(self, usage: Usage) -> None:
        """Of a whole answer, before its choices have finished."""
        self._model.add_usage(usage)
        self.times.usage = usage
        self._model.generation_tokens += usage.completion
        self._model.drafted += usage.drafted
        self._model.verified += usage.verified
        self._model.accepted += usage.accepted

    def _content(self, choice: int, tokens: int, now_s: float) -> None:
        self.times.last_s = now_s
        if self.times.ttft_s is None:
            self.times.ttft_s, self.times.first_s = now_s - self._arrived_s, now_s
        times = self._choices.get(choice)
        if times is None:
            self._model.time_to_first_token.observe(now_s - self._arrived_s)
            self._choices[choice] = _ChoiceTimes(now_s, now_s, 0)
            return
        self._model.step_gap.observe(now_s - times.last_s)
        times.last_s = now_s
        times.later_tokens += tokens

    def _finish(self, choice: int, reason: str, now_s: float) -> None:
        self._open -= 1
        self._model.finished[reason] += 1
        self.times.finish_reasons.append(str(reason))
        self._model.latency.observe(now_s - self._arrived_s)
        times = self._choices.get(choice)
        if times is not None and times.later_tokens:
            self._model.time_per_output_token.observe((times.last_s - times.first_s) / times.later_tokens)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *raised: object) -> None:
        """Choices still open when this ends were cancelled by their client, or have failed."""
        if self._open:
            is_cancelled = kind is not None and issubclass(kind, ClientGone | asyncio.CancelledError)
            self._model.finished["cancelled" if is_cancelled else "failed"] += self._open
            self._open = 0


@dataclass(slots=True)
class _ChoiceTimes:
    first_s: float
    last_s: float
    later_tokens: int  # beyond those of the first chunk, which came at no measurable rate


class Meter:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.models: dict[tuple[str, str], ModelMeter] = {}  # (upstream, model)
        self.responses: Counter[tuple[str, str, int]] = Counter()  # (method, route, status)

    def request(self, upstream: str, model: str, *, arrived_s: float, choices: int) -> RequestMeter:
        totals = self.models.get((upstream, model))
        if totals is None:
            totals = self.models[upstream, model] = ModelMeter()
        return RequestMeter(totals, arrived_s, choices)
