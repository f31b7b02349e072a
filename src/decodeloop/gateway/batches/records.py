"""A batch: what was asked, how far it is, and what its lines must look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from decodeloop.types import Identity

__all__ = ["ENDPOINTS", "OVER", "Batch", "Line", "LineError", "read_lines"]

ENDPOINTS = ("/v1/chat/completions", "/v1/completions")
OVER = frozenset({"completed", "failed", "expired", "cancelled"})
MAX_ERRORS = 100  # of a file, that are told


@dataclass(frozen=True, slots=True)
class Line:
    custom_id: str
    body: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LineError:
    line: int  # from 1
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """moments: when each status began, Unix time."""

    id: str
    identity: Identity
    endpoint: str
    input_file: str
    output_file: str
    error_file: str
    status: str
    created_s: float
    expires_s: float
    total: int = 0
    completed: int = 0
    failed: int = 0
    metadata: Mapping[str, str] = field(default_factory=dict)
    errors: Sequence[LineError] = ()
    moments: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_over(self) -> bool:
        return self.status in OVER

    def shown(self) -> dict[str, Any]:
        """As OpenAI's clients read it."""
        at = {f"{status}_at": int(moment) for status, moment in self.moments.items()}
        told = [{"code": "invalid_line", "line": each.line, "message": each.message} for each in self.errors]
        written = self.is_over and self.status != "failed"
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "errors": {"object": "list", "data": told} if told else None,
            "input_file_id": self.input_file,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file if written and self.completed else None,
            "error_file_id": self.error_file if written and self.failed else None,
            "created_at": int(self.created_s),
            "expires_at": int(self.expires_s),
            **{
                f"{name}_at": at.get(f"{name}_at")
                for name in (
                    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled",
                )
            },
            "request_counts": {"total": self.total, "completed": self.completed, "failed": self.failed},
            "metadata": dict(self.metadata) or None,
        }  # fmt: skip


def read_lines(data: bytes, endpoint: str, most: int) -> tuple[list[Line], list[LineError]]:
    """All lines, or what is wrong with them."""
    lines: list[Line] = []
    errors: list[LineError] = []
    seen: set[str] = set()
    rows = [(number, row) for number, row in enumerate(data.split(b"\n"), 1) if row.strip()]
    if not rows:
        return [], [LineError(1, "the file is empty")]
    if len(rows) > most:
        return [], [LineError(most + 1, f"{len(rows)} lines are more than the {most} allowed")]
    for number, row in rows:
        line = _line(row, endpoint, seen)
        if isinstance(line, str):
            errors.append(LineError(number, line))
            if len(errors) == MAX_ERRORS:
                break
        else:
            seen.add(line.custom_id)
            lines.append(line)
    return lines, errors


def _line(row: bytes, endpoint: str, seen: set[str]) -> Line | str:
    """The line, or what is wrong with it."""
    try:
        told = orjson.loads(row)
    except orjson.JSONDecodeError as error:
        return f"not JSON: {error}"
    if not isinstance(told, dict):
        return "not an object"
    custom_id, body = told.get("custom_id"), told.get("body")
    if not isinstance(custom_id, str) or not 1 <= len(custom_id) <= 256:
        return "custom_id must be a string of 1 to 256 characters"
    if not isinstance(body, dict):
        return "body must be an object"
    faults = (
        (custom_id in seen, f"custom_id {custom_id!r} is there twice"),
        (told.get("method", "POST") != "POST", "method must be POST"),
        (told.get("url", endpoint) != endpoint, f"url must be {endpoint}, as the batch says"),
        (bool(body.get("stream")), "a batch doesn't stream"),
    )
    fault = next((message for wrong, message in faults if wrong), None)
    return Line(custom_id, body) if fault is None else fault
