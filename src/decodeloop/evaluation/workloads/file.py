"""Workload files: JSON lines. An optional first line tells of the whole, every other is a request.

{"schema": "decodeloop.workload/1", "name": "support", "licence": "own", "sources": ["tickets of May"]}
{"id": "a", "class": "support_chat", "messages": [...], "params": {"max_tokens": 64}, "weight": 2.5}
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import orjson

from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.importing import Imported, Row, collect, importers
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest, encoded

SCHEMA = "decodeloop.workload/1"


class _Head(msgspec.Struct, forbid_unknown_fields=True):
    schema: str
    name: str | None = None
    sources: tuple[str, ...] = ()
    licence: str = ""
    began_at: str | None = None


class _Line(msgspec.Struct, forbid_unknown_fields=True, rename={"request_class": "class"}):
    """A request as its line says it: WorkRequest's fields."""

    id: str
    request_class: str = "general_chat"
    weight: float = 1.0
    prompt: str | None = None
    messages: tuple[dict[str, Any], ...] = ()
    params: dict[str, Any] = {}
    arrival_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    session: str | None = None
    prefix: tuple[int, ...] = ()


def read_file(path: Path, form: str = "workload") -> Imported:
    """A file in any of the formats of `importers`, by its name there."""
    with path.open(encoding="utf-8") as lines:
        return importers.load(form)(lines, path.stem)


def read_lines(lines: Iterable[str], name: str) -> Imported:
    """A workload file. Lines that are no requests are among the result's faults."""
    rest = iter(lines)
    first = next(rest, "")
    head = _head(first)
    if head is None:
        return collect(enumerate(chain([first], rest), 1), _parse, name=name)
    found = collect(enumerate(rest, 2), _parse, name=head.name or name, sources=head.sources, licence=head.licence)
    return Imported(replace(found.workload, began_at=head.began_at), found.faults, found.left_out)


def write(path: Path, workload: Workload) -> None:
    head: dict[str, Any] = {"schema": SCHEMA}
    for name in ("name", "sources", "licence", "began_at"):
        if value := getattr(workload, name):
            head[name] = value
    lines = [orjson.dumps(head), *map(encoded, workload.requests)]
    path.write_bytes(b"".join(line + b"\n" for line in lines))


def _head(line: str) -> _Head | None:
    """Raises ValueError for the head of another schema."""
    try:
        fields = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    if not isinstance(fields, dict) or "schema" not in fields:
        return None
    if fields["schema"] != SCHEMA:
        raise ValueError(f"line 1: schema {fields['schema']!r} is not {SCHEMA!r}")
    return msgspec.convert(fields, _Head)


def _parse(line: str, number: int) -> Row:
    fields = msgspec.structs.asdict(msgspec.json.decode(line, type=_Line))
    return Row(WorkRequest(**{**fields, "request_class": request_class(fields["request_class"])}))
