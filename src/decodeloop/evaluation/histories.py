"""What recorded steps say of requests: how their drafts fared, and when they came."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from decodeloop.evaluation.acceptance import Draft, History
from decodeloop.evaluation.workload import Arrival
from decodeloop.policy.acceptance import AcceptanceModel, Runs
from decodeloop.policy.replay import judged
from decodeloop.policy.slots import Leaves
from decodeloop.types import FloatArray, Reason, RequestClass, StepRecord, StepRow

Key = tuple[str, str]  # tenant, request


def histories(records: Sequence[StepRecord], *, max_draft_len: int, seed: int = 0) -> list[History]:
    """Each request's drafts, step by step.

    Where a draft was right as far as anyone looked, the rest fares at random as its class's drafts do; steps that had
    no draft for a reason other than that the drafter was silent say nothing and are left out.
    """
    conditional = _conditional(records, max_draft_len)
    rng = np.random.default_rng(seed)
    drafts: dict[Key, list[Draft]] = {}
    classes: dict[Key, RequestClass] = {}
    for row in _decoding(records):
        key = row.tenant, row.request_id
        classes[key] = row.request_class
        if row.draft_len:
            drafts.setdefault(key, []).append(_draft(row, conditional[row.request_class], rng))
        elif row.reason is Reason.NO_PROPOSAL:
            drafts.setdefault(key, []).append(Draft(0, 0, ()))
    return [History(classes[key], found) for key, found in drafts.items()]


def arrivals(records: Iterable[StepRecord]) -> list[Arrival]:
    """The recorded requests: first seen when, so many prompt tokens read, so many tokens put out. Starts at 0.

    Those whose prompt was read before the record began are left out. What waited in the queue is not seen.
    """
    seen: dict[Key, tuple[float, int, int, RequestClass]] = {}
    for record in records:
        for row in record.rows:
            key = row.tenant, row.request_id
            at_s, prompt, output, _ = seen.get(key, (record.at_s, 0, 0, row.request_class))
            seen[key] = at_s, prompt + row.prefill_tokens, output + row.emitted, row.request_class
    whole = sorted((each for each in seen.values() if each[1] and each[2]), key=lambda each: each[0])
    start = whole[0][0] if whole else 0.0
    return [Arrival(at_s - start, prompt, output, name) for at_s, prompt, output, name in whole]


def _decoding(records: Iterable[StepRecord]) -> Iterator[StepRow]:
    for record in records:
        yield from (row for row in record.rows if not row.prefill_tokens and row.emitted + row.discarded)


def _draft(row: StepRow, conditional: FloatArray, rng: np.random.Generator) -> Draft:
    right, known = judged(row)
    if right == known < row.draft_len:
        rest = rng.random(row.draft_len - known) < conditional[known : row.draft_len]
        right += len(rest) if rest.all() else int(np.argmin(rest))
    return Draft(row.draft_len, right, row.scores)


def _conditional(records: Iterable[StepRecord], max_draft_len: int) -> dict[RequestClass, FloatArray]:
    """[K] P(token k right | all before it were), per class."""
    leaves = Leaves()
    model = AcceptanceModel(max_draft_len, leaves)
    rows = [row for row in _decoding(records) if row.draft_len and judged(row)[1]]
    slots = {name: leaves.row("", name, "") for name in RequestClass}
    for name, slot in slots.items():
        own = [judged(row) for row in rows if row.request_class is name]
        for begin in range(0, len(own), 256):
            part = own[begin : begin + 256]
            runs = Runs.of([min(r, max_draft_len) for r, _ in part], [r >= known for r, known in part])
            model.learn(np.full(len(part), slot), runs)
    return {name: model.conditional[slot] for name, slot in slots.items()}
