"""Reading what others recorded. Every line becomes a request, or is counted and named: none vanishes silently."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.registry import Registry

NS = 1_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class LeftOut(Exception):
    """A sound line that is no request to be served: an error, an embedding, an answer of nothing."""


@dataclass(frozen=True, slots=True)
class Fault:
    line: int  # from 1
    why: str


@dataclass(frozen=True, slots=True)
class Row:
    """A request and when it came, in nanoseconds of the source's clock."""

    request: WorkRequest
    at_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Imported:
    """faults: malformed lines. left_out: reason -> sound lines that are no requests."""

    workload: Workload
    faults: tuple[Fault, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)

    def notes(self, most: int = 5) -> list[str]:
        """What a user is told, a line each; empty when every line became a request."""
        found = [f"{count} lines left out: {reason}" for reason, count in self.left_out.items()]
        if self.faults:
            named = "; ".join(f"line {fault.line}: {fault.why}" for fault in self.faults[:most])
            more = len(self.faults) - most
            found.append(f"{len(self.faults)} malformed lines: {named}{f'; and {more} more' if more > 0 else ''}")
        return found


# Each is called with the lines and a name for the workload.
importers = Registry[Imported](
    "importers",
    {
        "workload": "decodeloop.evaluation.workloads.file:read_lines",
        "capture": "decodeloop.evaluation.workloads.captures:read_capture",
        "otel": "decodeloop.evaluation.workloads.otel:read_otel",
        "azure": "decodeloop.evaluation.workloads.traces:read_azure",
        "mooncake": "decodeloop.evaluation.workloads.traces:read_mooncake",
        "burstgpt": "decodeloop.evaluation.workloads.traces:read_burstgpt",
        "spec_bench": "decodeloop.evaluation.workloads.prompts:read_spec_bench",
        "prompts": "decodeloop.evaluation.workloads.prompts:read_prompts",
    },
)


def collect(
    lines: Iterable[tuple[int, str]],
    parse: Callable[[str, int], Row],
    *,
    name: str,
    sources: tuple[str, ...] = (),
    licence: str = "",
    of_epoch: bool = True,
) -> Imported:
    """A workload of what `parse` makes of each line; empty lines are skipped.

    lines: with their numbers. parse: (line, its number) -> Row; raises ValueError for a malformed line, LeftOut for one
    that is no request. of_epoch: whether stamps count from 1970. Requests with stamps come in the order of these, from
    0 on.
    """
    rows: list[Row] = []
    faults: list[Fault] = []
    left_out: Counter[str] = Counter()
    taken: set[str] = set()
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = parse(line, number)
            if row.request.id in taken:
                raise ValueError(f"id {row.request.id!r} is taken by an earlier line")
            taken.add(row.request.id)
            rows.append(row)
        except LeftOut as reason:
            left_out[str(reason)] += 1
        except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            why = f"no field {error}" if isinstance(error, KeyError) else str(error)
            faults.append(Fault(number, why[:200]))
    stamps = [row.at_ns for row in rows if row.at_ns is not None]
    start = min(stamps, default=0)
    if len(stamps) == len(rows):
        rows.sort(key=lambda row: row.at_ns or 0)
    requests = tuple(
        row.request if row.at_ns is None else replace(row.request, arrival_s=(row.at_ns - start) / NS) for row in rows
    )
    began_at = iso(start) if stamps and of_epoch else None
    workload = Workload(name=name, requests=requests, sources=sources, licence=licence, began_at=began_at)
    return Imported(workload, tuple(faults), dict(left_out))


def nanoseconds(text: str) -> int:
    """Of an ISO 8601 time, to the last of its up to nine decimals, since 1970. Without a zone it is UTC."""
    text = text.strip()
    head, dot, tail = text.partition(".")
    digits = "".join(c for c in tail[: next((i for i, c in enumerate(tail) if not c.isdigit()), len(tail))])
    if dot and not digits:
        raise ValueError(f"{text!r} is no time")
    at = datetime.fromisoformat(head + tail[len(digits) :])
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    since = at - EPOCH
    return (since.days * 86400 + since.seconds) * NS + since.microseconds * 1000 + int(digits[:9].ljust(9, "0") or 0)


def iso(ns: int) -> str:
    """UTC, nine decimals."""
    at = EPOCH + timedelta(seconds=ns // NS)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ns % NS:09d}Z"


def tokens(value: object) -> int:
    """A count of tokens. Raises ValueError."""
    count = int(str(value))
    if count < 0:
        raise ValueError(f"{count} tokens")
    return count
