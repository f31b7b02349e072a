"""What serves the gateway: engines of any make, behind one contract."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from decodeloop.registry import Registry
from decodeloop.types import Chunk, Load, ModelCard, Request

__all__ = ["ModelCard", "Upstream", "upstreams"]


class Upstream(Protocol):
    """Serves requests. All methods run on the event loop and never block it.

    `stream` yields the answer's chunks (all choices interleaved, Chunk.index tells which); the last one carries
    `usage` and `report`. It raises RequestRefused before the first chunk for a bad request, and RequestRefused with
    status >= 500 when the engine failed, at any point. Closing the iterator (`aclose`) or cancelling the task cancels
    the request: its memory is free again at the next step.
    """

    async def start(self) -> None: ...

    async def close(self) -> None:
        """Refuse new requests, let running ones end (bounded), stop."""
        ...

    def ready(self) -> bool: ...

    def models(self) -> Sequence[ModelCard]: ...

    def stream(self, request: Request) -> AsyncGenerator[Chunk, None]: ...

    def load(self) -> Load: ...

    def counters(self) -> Mapping[str, float]:
        """Totals (names ending in `_total`, monotonic) and gauges (all others), shown as `decodeloop_engine_<name>`.

        A name may carry labels: `step_seconds_total{phase="draft"}`. What answers tell, the gateway counts itself.
        """
        ...

    def describe(self) -> Mapping[str, Any]:
        """The policy's view (`GET /v1/policy`), JSON-able."""
        ...


upstreams = Registry[Upstream](
    "upstreams",
    {
        "embedded": "decodeloop.engine.upstream:EmbeddedUpstream",
    },
)
