"""An upstream that says what a test tells it to, and remembers how each answer ended."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import Any

from decodeloop.gateway.upstreams import ModelCard
from decodeloop.types import Chunk, FinishReason, Load, Report, Request, Usage

MODEL = "tiny"
FOREVER = math.inf

Step = Chunk | float | Exception  # a chunk to yield, seconds to wait, an exception to raise
Script = Callable[[Request], Iterable[Step]]


class ScriptedUpstream:
    def __init__(self, script: Script, *, models: Sequence[str] = (MODEL,), counters: Mapping[str, float] = {}) -> None:
        self.script = script
        self.requests: list[Request] = []
        self.ends: Counter[str] = Counter()  # ended, cancelled, closed or failed -> streams
        self.open = 0
        self.yielded = 0
        self.is_ready = True
        self.started = self.stopped = False
        self._models, self._counters = models, counters

    async def start(self) -> None:
        self.started = True

    async def close(self) -> None:
        self.stopped = True

    def ready(self) -> bool:
        return self.is_ready

    def models(self) -> Sequence[ModelCard]:
        return [ModelCard(name, created=1_700_000_000, max_context=2048) for name in self._models]

    def load(self) -> Load:
        return Load(running=self.open, waiting=0, context_tokens=0, kv_free_fraction=0.75)

    def counters(self) -> Mapping[str, float]:
        return self._counters

    def describe(self) -> Mapping[str, Any]:
        return {"policy": "scripted", "draft_len": 4}

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        self.requests.append(request)
        self.open += 1
        how = "failed"
        try:
            for step in self.script(request):
                if isinstance(step, Chunk):
                    self.yielded += 1
                    yield step
                elif isinstance(step, Exception):
                    raise step
                else:
                    await (asyncio.Event().wait() if step == FOREVER else asyncio.sleep(step))
            how = "ended"
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        except GeneratorExit:
            how = "closed"
            raise
        finally:
            self.open -= 1
            self.ends[how] += 1


def report(request: Request, **changes: Any) -> Report:
    values: dict[str, Any] = {
        "seed": request.seed,
        "request_class": request.request_class,
        "drafter": "ngram",
        "queue_ms": 1.0,
        "prefill_ms": 2.0,
        "draft_ms": 0.5,
        "verify_ms": 8.0,
        "sample_ms": 0.25,
        "overhead_ms": 0.125,
        "steps": 3,
        "drafted": 9,
        "verified": 8,
        "accepted": 5,
        "discarded": 0,
        "reasons": {"fixed": 2, "no_proposal": 1},
        "accepted_per_step": (4, 1),
        "verified_per_step": (4, 4),
        **changes,
    }
    return Report(**values)


def plain_report(request: Request) -> Report:
    """Of an answer without speculation."""
    return report(
        request, drafter=None, drafted=0, verified=0, accepted=0, accepted_per_step=(), verified_per_step=(),
        reasons={"off_user": 3},
    )  # fmt: skip


def says(*texts: str, prompt: int = 7, cached: int = 4) -> Script:
    """Every choice says `texts`, a chunk and a token each."""

    def script(request: Request) -> Iterable[Step]:
        for place, text in enumerate(texts):
            for choice in range(request.n):
                yield Chunk(index=choice, text=text, token_ids=(place,))
        for choice in range(request.n):
            last = choice == request.n - 1
            yield Chunk(
                index=choice,
                finish_reason=FinishReason.STOP,
                usage=Usage(prompt, cached, len(texts) * request.n) if last else None,
                report=report(request) if last else None,
            )

    return script


def finish(request: Request, reason: FinishReason = FinishReason.STOP, **chunk: Any) -> Chunk:
    """The last chunk of a single choice."""
    return Chunk(finish_reason=reason, usage=Usage(7, 4, 2), report=report(request), **chunk)
