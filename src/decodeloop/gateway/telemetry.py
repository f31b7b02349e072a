"""What a finished request tells whoever watches: traces, metrics of other systems, logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from decodeloop.types import Identity, Report, Usage

__all__ = ["Finished", "Observer", "Silence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One HTTP request, from its arrival to its end; no content.

    operation: chat or text_completion. asked: the body's sampling fields that were given. error: its code or status,
    None where it was answered. started_s, ended_s: Unix time. ttft_s: None where no content came. tpot_s: seconds per
    output token after the first, None below two.
    """

    request_id: str
    operation: str
    model: str
    response_id: str = ""
    upstream: str = ""
    pool: str = ""
    route: str = ""
    request_class: str = ""
    identity: Identity = Identity()
    asked: Mapping[str, object] = field(default_factory=dict)
    usage: Usage | None = None
    report: Report | None = None
    finish_reasons: Sequence[str] = ()
    error: str | None = None
    status: int = 200
    started_s: float = 0.0
    ended_s: float = 0.0
    ttft_s: float | None = None
    tpot_s: float | None = None
    traceparent: str | None = None
    task: str = ""


class Observer(Protocol):
    def finished(self, request: Finished) -> None:
        """Never waits, never raises."""
        ...


class Silence:
    """Nobody watches."""

    def finished(self, request: Finished) -> None:
        pass
