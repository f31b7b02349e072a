"""What a finished request tells whoever watches: traces, metrics of other systems, logs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from decodeloop.types import Identity, Report, SamplingParams, Usage

__all__ = ["Finished", "Observer", "Times", "Trail", "asked_of"]


@dataclass(slots=True)
class Times:
    """Of one answer, all its choices together; filled by what times it. first_s, last_s: monotonic."""

    ttft_s: float | None = None
    first_s: float = 0.0
    last_s: float = 0.0
    finish_reasons: list[str] = field(default_factory=list)
    usage: Usage | None = None
    report: Report | None = None

    @property
    def tpot_s(self) -> float | None:
        tokens = 0 if self.usage is None else self.usage.completion
        return (self.last_s - self.first_s) / (tokens - 1) if tokens > 1 and len(self.finish_reasons) == 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """One HTTP request, from its arrival to its end; no content.

    operation: chat or text_completion. asked: the body's sampling fields that were given. error: its code or status,
    None where it was answered. started_s, ended_s: Unix time. ttft_s: None where no content came. tpot_s: seconds per
    output token after the first, None below two. asked_model: the alias that `model` answered for. batch: the id of
    the one that it is a line of.
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
    asked_model: str = ""
    batch: str = ""


@dataclass(slots=True, kw_only=True)
class Trail:
    """What becomes known of a request on its way; its exchange owns it."""

    operation: str
    response_id: str
    identity: Identity
    task: str = ""
    model: str = ""
    asked_model: str = ""
    batch: str = ""
    request_class: str = ""
    asked: Mapping[str, object] = field(default_factory=dict)
    pool: str = ""
    upstream: str = ""
    route: str = ""
    times: Times | None = None
    error: str | None = None

    def finished(
        self, request_id: str, status: int, traceparent: str | None, started_s: float, ended_s: float
    ) -> Finished:
        """Unix seconds."""
        times = self.times or Times()
        error = self.error or (str(status) if status >= 400 else None)
        return Finished(
            request_id=request_id,
            operation=self.operation,
            model=self.model,
            response_id=self.response_id,
            upstream=self.upstream,
            pool=self.pool,
            route=self.route,
            request_class=self.request_class,
            identity=self.identity,
            asked=self.asked,
            usage=times.usage,
            report=times.report,
            finish_reasons=tuple(times.finish_reasons),
            error=error,
            status=status,
            started_s=started_s,
            ended_s=ended_s,
            ttft_s=times.ttft_s,
            tpot_s=times.tpot_s,
            traceparent=traceparent,
            task=self.task,
            asked_model=self.asked_model,
            batch=self.batch,
        )


class Observer(Protocol):
    def finished(self, request: Finished) -> None:
        """Never waits, never raises."""
        ...


def asked_of(params: SamplingParams) -> dict[str, object]:
    """The sampling fields that differ from what nobody asks."""
    told: dict[str, object] = {
        "max_tokens": params.max_tokens,
        "temperature": params.temperature,
        "top_p": None if params.top_p == 1.0 else params.top_p,
        "top_k": params.top_k or None,
        "presence_penalty": params.presence_penalty or None,
        "frequency_penalty": params.frequency_penalty or None,
        "stop": list(params.stop) or None,
    }
    return {name: value for name, value in told.items() if value is not None}
