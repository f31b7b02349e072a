"""Results files on disk: appended line by line, readable after any interruption (`results` says what is in them)."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import msgspec

from decodeloop.evaluation.results import Plan, RequestResult, Results, Turn, TurnKey, key_of

SCHEMA = "decodeloop.run/1"
KINDS: dict[str, type[Plan] | type[Turn] | type[RequestResult]] = {
    "plan": Plan,
    "request": RequestResult,
    "turn": Turn,
}


class Journal:
    """Appends to a results file. Every turn is on disk before the next one begins."""

    def __init__(self, path: Path, plan: Plan) -> None:
        """Opens `path`, or creates it with `plan`.

        Raises ValueError when it holds another plan: results of two plans don't mix.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        whole = _whole_lines(path)
        if whole:
            found = load(path).plan
            if _without_stamp(found) != _without_stamp(plan):
                raise ValueError(f"{path} holds the results of another plan: {_difference(found, plan)}")
        self._file: BinaryIO = path.open("r+b" if path.exists() else "wb")
        self._file.truncate(whole)  # a torn last line would swallow the next one
        self._file.seek(whole)
        if not whole:
            self._write([("plan", plan)])

    def add(self, turn: Turn, requests: Iterable[RequestResult]) -> None:
        """A finished turn. An earlier one of the same place is superseded."""
        self._write([*(("request", request) for request in requests), ("turn", turn)])

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, records: Iterable[tuple[str, Any]]) -> None:
        for kind, record in records:
            extra = {"schema": SCHEMA} if kind == "plan" else {}
            line = {"kind": kind, **extra, **msgspec.to_builtins(record)}
            self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def load(path: Path) -> Results:
    """Raises ValueError, with the line's number, for what is no results file. A torn last line is not read."""
    plan: Plan | None = None
    turns: dict[TurnKey, Turn] = {}
    requests: dict[TurnKey, list[RequestResult]] = {}
    pending: dict[TurnKey, list[RequestResult]] = {}
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break
            record = _record(line, f"{path}, line {number}")
            if isinstance(record, Plan):
                if plan is not None:
                    raise ValueError(f"{path}, line {number}: a second plan")
                plan = record
            elif plan is None:
                raise ValueError(f"{path}, line {number}: a results file begins with its plan")
            elif isinstance(record, RequestResult):
                pending.setdefault(key_of(record), []).append(record)
            else:
                key = key_of(record)
                turns[key] = record
                requests[key] = pending.pop(key, [])[-record.requests :] if record.requests else []
                pending.clear()
    if plan is None:
        raise ValueError(f"{path}: no results in it")
    return Results(plan, tuple(turns.values()), tuple(request for key in turns for request in requests[key]))


def save(path: Path, results: Results) -> None:
    """All of `results` as a new file. Raises FileExistsError rather than overwrite one."""
    if path.exists():
        raise FileExistsError(f"{path} exists")
    with Journal(path, results.plan) as journal:
        for turn in results.turns:
            journal.add(turn, results.of(turn))


def _record(line: bytes, where: str) -> Plan | Turn | RequestResult:
    try:
        fields = msgspec.json.decode(line)
        kind = KINDS[fields.pop("kind")]
        if kind is Plan and (schema := fields.pop("schema", None)) != SCHEMA:
            raise ValueError(f"schema {schema!r} is not {SCHEMA!r}")
        return msgspec.convert(fields, kind)
    except (msgspec.MsgspecError, KeyError, AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{where}: no record of a run ({error})") from error


def _whole_lines(path: Path) -> int:
    """Bytes up to and including the last newline."""
    return path.read_bytes().rfind(b"\n") + 1 if path.exists() else 0


def _without_stamp(plan: Plan) -> dict[str, Any]:
    """A plan is the same on another day and from another shell."""
    fields: dict[str, Any] = msgspec.to_builtins(plan)
    return {name: value for name, value in fields.items() if name not in ("id", "created_at", "command", "system")}


def _difference(found: Plan, wanted: Plan) -> str:
    a, b = _without_stamp(found), _without_stamp(wanted)
    return "; ".join(f"{name} {a[name]!r}, asked for {b[name]!r}" for name in a if a[name] != b[name])[:500]
