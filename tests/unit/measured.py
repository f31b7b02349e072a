"""Results as if something had been measured: small, exact, the same every time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from decodeloop.evaluation.plan import Arm, Plan, WorkloadFacts
from decodeloop.evaluation.results import RequestResult, Results, Turn
from decodeloop.types import RequestClass

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
FACTS = WorkloadFacts(
    name="tiny", sha256="0" * 64, requests=4, counts={"code_edit": 2, "general_chat": 2},
    shares={"code_edit": 0.25, "general_chat": 0.75},
)  # fmt: skip


def plan(**changes: Any) -> Plan:
    fields: dict[str, Any] = {
        "id": "run-1",
        "created_at": "2026-01-02T03:04:05Z",
        "version": "0",
        "workload": FACTS,
        "arms": (Arm(label="off", target="http://x", lossless=True), Arm(label="on", target="http://x", lossless=True)),
        "levels": (1.0, 4.0),
        "blocks": 3,
        "requests_per_turn": 4,
        **changes,
    }
    return Plan(**fields)


def request(level: float, block: int, turn: int, arm: str, *, id: str = "a", **changes: Any) -> RequestResult:
    fields: dict[str, Any] = {
        "request_class": EDIT,
        "due_s": 0.0,
        "sent_s": 0.001,
        "ended_s": 1.001,
        "chunk_s": (0.101, 0.501, 1.001),
        "chunk_tokens": (2, 3, 6),
        "prompt_tokens": 10,
        "completion_tokens": 11,
        "finish_reason": "stop",
        **changes,
    }
    return RequestResult(level=level, block=block, turn=turn, arm=arm, id=id, **fields)


def turn(level: float, block: int, place: int, arm: str, **changes: Any) -> Turn:
    fields: dict[str, Any] = {
        "began_at": "2026-01-02T03:04:05Z",
        "seconds": 2.0,
        "tokens": 44,
        "requests": 4,
        "errors": 0,
        "concurrency": level,
        **changes,
    }
    return Turn(level=level, block=block, turn=place, arm=arm, **fields)


def served(level: float, block: int, place: int, arm: str) -> list[RequestResult]:
    ids = {"a": EDIT, "b": EDIT, "c": CHAT, "d": CHAT}
    return [request(level, block, place, arm, id=id, request_class=kind) for id, kind in ids.items()]


def results(
    made: Plan | None = None,
    *,
    serve: Callable[[float, int, int, str], list[RequestResult]] = served,
    seconds: Callable[[float, int, int, str], float] = lambda *_: 2.0,
) -> Results:
    made = made or plan()
    turns, requests = [], []
    for key in made.turns():
        done = serve(*key)
        requests += done
        tokens = sum(r.completion_tokens for r in done if not r.ramp)
        turns.append(turn(*key, requests=len(done), tokens=tokens, seconds=seconds(*key)))
    return Results(made, tuple(turns), tuple(requests))
