"""What serves the gateway: engines of any make, behind one contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, runtime_checkable

from decodeloop.registry import Registry
from decodeloop.types import Chunk, Load, ModelCard, Request

__all__ = ["ModelCard", "RelayAnswer", "RelayUpstream", "Served", "Upstream", "UpstreamFailed", "upstreams"]


class Served(Protocol):
    """What the gateway must know of an engine, whatever its make. All methods run on the event loop and never block."""

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Refuse new requests, let running ones end (bounded), stop."""
        ...

    def ready(self) -> bool: ...

    def models(self) -> Sequence[ModelCard]: ...

    def load(self) -> Load: ...

    def counters(self) -> Mapping[str, float]:
        """Totals (names ending in `_total`, monotonic) and gauges (all others), shown as `decodeloop_engine_<name>`.

        A name may carry labels: `step_seconds_total{phase="draft"}`. What answers tell, the gateway counts itself.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """The policy's view (`GET /v1/policy`), JSON-able."""
        ...


class Upstream(Served, Protocol):
    """Serves requests in our own terms.

    `stream` yields the answer's chunks (all choices interleaved, Chunk.index tells which); the last one carries
    `usage` and `report`. It raises RequestRefused before the first chunk for a bad request, and RequestRefused with
    status >= 500 when the engine failed, at any point. Closing the iterator (`aclose`) or cancelling the task cancels
    the request: its memory is free again at the next step.
    """

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]: ...


class RelayAnswer(Protocol):
    """Another server's answer as it comes."""

    status: int
    retry_after_s: float | None

    async def each(self, take: Callable[[bytes], Coroutine[Any, Any, bool] | None]) -> None:
        """Give every piece to `take` the moment it comes. Where `take` gives a coroutine back, the rest waits for that;
        where this returns True, the rest is left. What `take` raises is raised here; UpstreamFailed where the answer
        breaks off."""
        ...


@runtime_checkable
class RelayUpstream(Served, Protocol):
    """Another server with OpenAI's API: bodies are passed on, answers passed back."""

    def ask(
        self, path: str, body: Mapping[str, Any], trace: Mapping[str, str]
    ) -> AbstractAsyncContextManager[RelayAnswer]:
        """POST `body`, as a caller of ours sent it; `trace` are headers that name the request.

        Leaving the context before the answer's end closes the connection, by which the other side knows.

        Raises:
            UpstreamFailed: no answer began.
        """
        ...


class UpstreamFailed(Exception):
    """A server that can't be reached, or that breaks off. The message names no address."""


upstreams = Registry[Upstream](
    "upstreams",
    {
        "embedded": "decodeloop.engine.upstream:EmbeddedUpstream",
    },
)
