"""Whose time a step was: the measured milliseconds of each step, split over its requests.

Drafting goes by draft tokens; the forward by tokens read (a prompt's, or 1 + verify_len) and by cached keys and values
read; sampling by judged positions; overhead evenly. The parts sum to the step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decodeloop.types import RequestClass, StepRecord, StepRow


@dataclass(frozen=True, slots=True)
class StepShape:
    """What a forward's time is made of: fixed_ms + token_ms tokens + context_ms cached tokens."""

    fixed_ms: float
    token_ms: float
    context_ms: float

    def cache_share(self, tokens: int, context: int) -> float:
        """The part of a forward that is reading the cache."""
        cache = self.context_ms * context
        whole = self.fixed_ms + self.token_ms * tokens + cache
        return cache / whole if whole > 0.0 else 0.0


NO_CACHE = StepShape(1.0, 0.0, 0.0)


@dataclass(slots=True)
class RequestTime:
    """What one request took of the machine, in ms, and what came of it."""

    request_id: str
    tenant: str
    request_class: RequestClass
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    overhead_ms: float = 0.0
    prompt_tokens: int = 0  # read here; a cached prefix is not
    output_tokens: int = 0
    steps: int = 0  # decode steps
    drafts: int = 0  # steps that verified a draft
    drafted: int = 0
    verified: int = 0
    accepted: int = 0

    @property
    def total_ms(self) -> float:
        return self.prefill_ms + self.draft_ms + self.verify_ms + self.sample_ms + self.overhead_ms


@dataclass(slots=True)
class Attribution:
    """requests: by id. measured_ms: the steps' own total, which the requests' times sum to."""

    shape: StepShape
    requests: dict[str, RequestTime] = field(default_factory=dict)
    measured_ms: float = 0.0
    idle_ms: float = 0.0  # of steps without rows

    @property
    def attributed_ms(self) -> float:
        return math.fsum(request.total_ms for request in self.requests.values())

    def by_class(self) -> dict[RequestClass, list[RequestTime]]:
        classes: dict[RequestClass, list[RequestTime]] = {}
        for request in self.requests.values():
            classes.setdefault(request.request_class, []).append(request)
        return classes


def fit_shape(records: Iterable[StepRecord]) -> StepShape:
    """Non-negative least squares of the forwards' times, robust to steps that a neighbour slowed.

    A coefficient that would come out negative is 0. Without any measured forward: nothing is the cache's.
    """
    rows = [
        (float(tokens_of(record)), float(context_of(record)), record.verify_ms)
        for record in records
        if record.rows and 0.0 < record.verify_ms < math.inf
    ]
    if len(rows) < 3:
        return NO_CACHE
    data = np.array(rows)
    design = np.column_stack([np.ones(len(data)), data[:, 0], data[:, 1]])
    keep = np.ones(len(data), dtype=bool)
    shape = np.zeros(3)
    for _ in range(3):
        shape = _non_negative(design[keep], data[keep, 2])
        ratio = data[:, 2] / np.maximum(design @ shape, 1e-9)
        keep = ratio < 3.0 * float(np.median(ratio))
    return StepShape(*(float(value) for value in shape))


def attribute(records: Sequence[StepRecord], shape: StepShape | None = None) -> Attribution:
    """Split every step's time over its rows. shape: how reading the cache compares; None: fitted to these records."""
    found = Attribution(fit_shape(records) if shape is None else shape)
    for record in records:
        found.measured_ms += record.step_ms
        if not record.rows:
            found.idle_ms += record.step_ms
            continue
        for row, part in zip(record.rows, split(record, found.shape), strict=True):
            _add(found.requests, row, part)
    return found


@dataclass(frozen=True, slots=True)
class Part:
    """One row's part of a step, in ms."""

    draft_ms: float
    verify_ms: float
    sample_ms: float
    overhead_ms: float

    @property
    def total_ms(self) -> float:
        return self.draft_ms + self.verify_ms + self.sample_ms + self.overhead_ms


def split(record: StepRecord, shape: StepShape) -> list[Part]:
    """Each row's part; they sum to the record's step_ms. Time that the record's own parts don't name is overhead."""
    rows = record.rows
    tokens = _shares([_tokens(row) for row in rows])
    context = _shares([row.context_tokens for row in rows])
    judged = _shares([0 if row.prefill_tokens and not row.emitted else 1 + row.verify_len for row in rows])
    drafts = _shares([row.draft_len for row in rows])
    cache = shape.cache_share(tokens_of(record), context_of(record))
    named = record.draft_ms + record.verify_ms + record.sample_ms
    return [
        Part(
            draft_ms=record.draft_ms * drafts[i],
            verify_ms=record.verify_ms * (cache * context[i] + (1.0 - cache) * tokens[i]),
            sample_ms=record.sample_ms * judged[i],
            overhead_ms=(record.step_ms - named) / len(rows),
        )
        for i in range(len(rows))
    ]


def tokens_of(record: StepRecord) -> int:
    return sum(_tokens(row) for row in record.rows)


def context_of(record: StepRecord) -> int:
    return sum(row.context_tokens for row in record.rows)


def _tokens(row: StepRow) -> int:
    return row.prefill_tokens or 1 + row.verify_len


def _shares(values: Sequence[int]) -> list[float]:
    """Of the whole; equal ones where the whole is nothing."""
    whole = sum(values)
    return [value / whole if whole else 1.0 / len(values) for value in values]


def _add(requests: dict[str, RequestTime], row: StepRow, part: Part) -> None:
    own = requests.get(row.request_id)
    if own is None:
        own = requests[row.request_id] = RequestTime(row.request_id, row.tenant, row.request_class)
    own.draft_ms += part.draft_ms
    own.sample_ms += part.sample_ms
    own.overhead_ms += part.overhead_ms
    own.output_tokens += row.emitted
    if row.prefill_tokens:
        own.prefill_ms += part.verify_ms
        own.prompt_tokens += row.prefill_tokens
        return
    own.verify_ms += part.verify_ms
    own.steps += 1
    own.drafts += row.verify_len > 0
    own.drafted += row.draft_len
    own.verified += row.verify_len
    own.accepted += row.accepted


def _non_negative(design: Any, ms: Any) -> Any:
    """[3] Least squares with coefficients at least 0: the best of all subsets of columns that comes out so."""
    best, least = np.zeros(3), math.inf
    for subset in range(1, 8):
        columns = [i for i in range(3) if subset >> i & 1]
        solved, *_ = np.linalg.lstsq(design[:, columns], ms, rcond=None)
        if (solved < 0.0).any():
            continue
        error = float(np.square(design[:, columns] @ solved - ms).sum())
        if error < least:
            best, least = np.zeros(3), error
            best[columns] = solved
    return best
