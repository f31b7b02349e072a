"""Requests written down, where a grant allows it and their sender consents: JSON lines that `decodeloop workload import
--format capture` reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from decodeloop.gateway.store.lines_file import LinesFile
from decodeloop.gateway.wire.accounts import usage_object
from decodeloop.governance.ledger import LedgerRow
from decodeloop.governance.settings import CaptureSettings

__all__ = ["Captured", "Redact", "captures_file"]

Redact = Callable[[Any], Any]  # of a JSON value: the same without what is personal


@dataclass(frozen=True, slots=True)
class Captured:
    """raw: the request's body. answers: by choice, where they came as text."""

    row: LedgerRow
    raw: bytes
    answers: Sequence[str]


def captures_file(settings: CaptureSettings, name: str, redact: Redact | None) -> LinesFile | None:
    """None: none are kept. Raises ValueError where they are to be redacted and nothing can."""
    if settings.directory is None:
        return None
    if settings.redact and redact is None:
        raise ValueError("captures are to be redacted, and there is nothing that redacts them")
    cleaned = redact if settings.redact and redact is not None else _as_it_is
    return LinesFile(
        Path(settings.directory),
        "captures",
        name,
        most_bytes=settings.max_file_mb << 20,
        most_files=settings.max_files,
        render=lambda captured: _line(captured, cleaned),
    )


def _line(captured: Captured, redact: Redact) -> dict[str, Any]:
    row = captured.row
    content = {"body": orjson.loads(captured.raw), "session": row.task or None, "answers": list(captured.answers)}
    return {
        "at": row.started_s,
        "id": row.request_id,
        "class": row.request_class,
        "status": 200,
        "organization": row.identity.organization,
        "model": row.model,
        "pool": row.pool,
        "regime": row.regime,
        "usage": usage_object(row.usage),
        **redact(content),
    }


def _as_it_is(value: Any) -> Any:
    return value
