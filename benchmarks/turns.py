"""When a turn of an arm is enough, and what it amounts to."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from closed_loop import Served

from decodeloop.types import StepRecord


def steps(count: int) -> Callable[[Served], bool]:
    return lambda served: len(served.records) >= count


def answers(count: int) -> Callable[[Served], bool]:
    return lambda served: len(served.answers) >= count


def rate(served: Served) -> float:
    """Tokens a second."""
    return round(served.tokens / served.seconds, 1)


def verified(records: Sequence[StepRecord]) -> float:
    """Draft tokens verified, per decoding row."""
    rows = [row for record in records for row in record.rows if not row.prefill_tokens]
    return round(sum(row.verify_len for row in rows) / len(rows), 3)
