"""Reads what `serve --record` wrote: StepRecords, checked, or the line and the fault."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from decodeloop.types import STEPS_SCHEMA, Provenance, StepRecord, StepRow


@dataclass(slots=True)
class Steps:
    """cut_short: lines that a killed process or a full disk left incomplete, and that were passed over."""

    records: list[StepRecord] = field(default_factory=list)
    provenance: Provenance | None = None
    cut_short: int = 0

    @property
    def max_draft_len(self) -> int:
        """The longest draft in the record: the least that the engine's own maximum was."""
        return max((row.draft_len for record in self.records for row in record.rows), default=0)


class _Header(msgspec.Struct):
    schema: str
    provenance: Provenance


_HEADERS = msgspec.json.Decoder(_Header)
_RECORDS = msgspec.json.Decoder(StepRecord)
TRUNCATED = "Input data was truncated"
MOST_MS = 1e9  # eleven days
MOST_COUNT = 2**31 - 1
MOST_DRAFTED = 1024


def read_steps(lines: Iterable[bytes], *, source: str) -> Steps:
    """The records of one file, or of several of a rotation one after another, oldest first.

    A line that just stops is what a killed process or a full disk leaves: it is passed over and counted. Anything else
    that is no record is refused.

    Raises:
        ValueError: `source`, the line's number and what is wrong with it.
    """
    steps, number = Steps(), 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if number == 1 or line.startswith(b'{"schema"'):
            steps.provenance = _header(line, f"{source}, line {number}")
        else:
            record = _record(line, f"{source}, line {number}")
            steps.cut_short += record is None
            steps.records += [] if record is None else [record]
    if not number:
        raise ValueError(f"{source}: the file is empty; it should begin with a line that names {STEPS_SCHEMA!r}")
    return steps


def _header(line: bytes, where: str) -> Provenance:
    try:
        header = _HEADERS.decode(line)
    except msgspec.MsgspecError as error:
        raise ValueError(f"{where}: not a header that names {STEPS_SCHEMA!r} ({error})") from None
    if header.schema != STEPS_SCHEMA:
        raise ValueError(f"{where}: the schema is {header.schema!r}; this version reads {STEPS_SCHEMA!r}")
    return header.provenance


def _record(line: bytes, where: str) -> StepRecord | None:
    """None: the line just stops."""
    try:
        record = _RECORDS.decode(line)
    except msgspec.MsgspecError as error:
        if str(error) == TRUNCATED:
            return None
        raise ValueError(f"{where}: not a step record ({error})") from None
    fault = _fault(record)
    if fault:
        raise ValueError(f"{where}: {fault}")
    return record


def _fault(record: StepRecord) -> str | None:
    """What can't be true of a step; None if all can."""
    for name in ("draft_ms", "verify_ms", "sample_ms", "overhead_ms", "step_ms"):
        ms = getattr(record, name)
        if not 0.0 <= ms <= MOST_MS:
            return f"{name} is {ms}"
    load = record.load
    fault = _count_fault(load.running, load.waiting, load.context_tokens, load.prefill_tokens)
    if fault:
        return f"load: {fault}"
    for place, row in enumerate(record.rows):
        fault = _row_fault(row)
        if fault:
            return f"row {place} ({row.request_id}): {fault}"
    return None


def _row_fault(row: StepRow) -> str | None:
    counts = (row.context_tokens, row.prefill_tokens, row.verify_len, row.accepted, row.emitted, row.discarded)
    fault = _count_fault(*counts, *row.shadow_match.values()) or _count_fault(row.draft_len, most=MOST_DRAFTED)
    if fault:
        return fault
    if row.verify_len > row.draft_len:
        return f"{row.verify_len} tokens were verified of {row.draft_len} drafted"
    if row.accepted > row.verify_len:
        return f"{row.accepted} tokens were accepted of {row.verify_len} verified"
    if len(row.scores) > row.draft_len:
        return f"{len(row.scores)} scores for {row.draft_len} drafted tokens"
    judged = row.emitted + row.discarded
    if judged and judged != row.accepted + 1:
        return f"{row.emitted} emitted and {row.discarded} discarded are not {row.accepted} accepted and one more"
    return None


def _count_fault(*counts: int, most: int = MOST_COUNT) -> str | None:
    if min(counts) < 0:
        return "a count is negative"
    return f"more was counted than can be: {most} is the most" if max(counts) > most else None
