"""Return on what serving costs: work done per dollar, and what people made of the answers.

The second half comes from the clients themselves: a coding assistant tells when a suggestion was shown, taken or
turned down, and when a task began and ended. One JSON object a line:

    {"at": "2026-11-29T10:00:00Z", "event": "suggestion_shown", "request_id": "...", "session_id": "...", "arm": "..."}

event: suggestion_shown, suggestion_accepted, suggestion_rejected, task_started, task_completed, task_abandoned.
suggestion_*: of `request_id`. task_*: of `session_id`. arm: the serving configuration (or pool) that answered.
Fields beside these are allowed and not read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

import numpy as np


class EventKind(StrEnum):
    SUGGESTION_SHOWN = "suggestion_shown"
    SUGGESTION_ACCEPTED = "suggestion_accepted"
    SUGGESTION_REJECTED = "suggestion_rejected"
    TASK_STARTED = "task_started"
    TASK_COMPLETED = "task_completed"
    TASK_ABANDONED = "task_abandoned"

    @property
    def of_task(self) -> bool:
        return self.value.startswith("task_")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEvent:
    """at_s: seconds since 1970."""

    at_s: float
    kind: EventKind
    request_id: str | None = None
    session_id: str | None = None
    arm: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What clients made of one arm's answers. None: nothing was told that it could be computed of.

    acceptance: suggestions taken of those shown. completion_s: from a task's start to its end, p50 and p90 over tasks.
    """

    arm: str
    shown: int
    accepted: int
    acceptance: float | None
    tasks: int
    completed: int
    completion_s_p50: float | None
    completion_s_p90: float | None


@dataclass(frozen=True, slots=True)
class Return:
    """Of one arm: work per dollar of device time. accepted_per_usd: suggestions taken, where clients told."""

    arm: str
    output_tokens_per_usd: float
    requests_per_usd: float
    accepted_per_usd: float | None = None


@dataclass(slots=True)
class Events:
    """malformed: line number -> what was wrong with it; nothing else was dropped."""

    events: list[ClientEvent] = field(default_factory=list)
    malformed: dict[int, str] = field(default_factory=dict)


def read_events(lines: Iterable[str]) -> Events:
    """Malformed lines are kept by number, not silently dropped, and do not stop the reading."""
    found = Events()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found.events.append(_event(line))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            found.malformed[number] = f"{type(error).__name__}: {error}"
    return found


def outcomes(events: Sequence[ClientEvent]) -> list[Outcome]:
    """By arm, in order of name. A suggestion counts once, however often it was told; the last word on it holds."""
    return [_outcome(arm, [e for e in events if e.arm == arm]) for arm in sorted({e.arm for e in events})]


def returns(arm: str, *, usd_per_hour: float, seconds: float, output_tokens: float, requests: int) -> Return:
    """seconds: of the whole machine, at usd_per_hour."""
    usd = usd_per_hour * seconds / 3600.0
    if not usd > 0.0:
        raise ValueError("no return on nothing: the time or its price is 0")
    return Return(arm, output_tokens / usd, requests / usd)


def _outcome(arm: str, events: list[ClientEvent]) -> Outcome:
    shown: set[str | None] = set()
    last: dict[str | None, EventKind] = {}
    began: dict[str | None, float] = {}
    ended: dict[str | None, ClientEvent] = {}
    for event in sorted(events, key=lambda e: e.at_s):
        if event.kind is EventKind.TASK_STARTED:
            began.setdefault(event.session_id, event.at_s)
        elif event.kind.of_task:
            ended[event.session_id] = event
        else:
            shown.add(event.request_id)
            last[event.request_id] = event.kind
    accepted = sum(kind is EventKind.SUGGESTION_ACCEPTED for kind in last.values())
    completed = [e for e in ended.values() if e.kind is EventKind.TASK_COMPLETED]
    took = [e.at_s - began[e.session_id] for e in completed if e.session_id in began]
    p50, p90 = (float(v) for v in np.quantile(took, [0.5, 0.9])) if took else (None, None)
    return Outcome(
        arm=arm,
        shown=len(shown),
        accepted=accepted,
        acceptance=accepted / len(shown) if shown else None,
        tasks=len(began.keys() | ended.keys()),
        completed=len(completed),
        completion_s_p50=p50,
        completion_s_p90=p90,
    )


def _event(line: str) -> ClientEvent:
    row = json.loads(line)
    kind = EventKind(row["event"])
    event = ClientEvent(
        at_s=datetime.fromisoformat(row["at"]).timestamp(),
        kind=kind,
        request_id=row.get("request_id"),
        session_id=row.get("session_id"),
        arm=str(row.get("arm") or ""),
    )
    needed = "session_id" if kind.of_task else "request_id"
    if not isinstance(getattr(event, needed), str):
        raise ValueError(f"a {kind} event needs its {needed}")
    return event
