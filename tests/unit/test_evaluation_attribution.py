"""Whose time a step was: the parts sum to the step, and go where the definitions say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.attribution import StepShape, attribute, fit_shape, split
from decodeloop.types import Load, Reason, RequestClass, StepRecord, StepRow


def row(name="a", **parts):
    parts = {"request_class": RequestClass.SQL, "reason": Reason.FIXED, "tenant": "t", **parts}
    return StepRow(request_id=name, **parts)


def step(rows, draft_ms=1.0, verify_ms=10.0, sample_ms=2.0, overhead_ms=1.0):
    total = draft_ms + verify_ms + sample_ms + overhead_ms
    return StepRecord(
        step=0,
        at_s=0.0,
        load=Load(len(rows), 0, sum(r.context_tokens for r in rows), 1.0),
        draft_ms=draft_ms,
        verify_ms=verify_ms,
        sample_ms=sample_ms,
        overhead_ms=overhead_ms,
        step_ms=total,
        rows=tuple(rows),
    )


rows = st.builds(
    lambda name, prefill, context, drafted, cut, accepted: row(
        name,
        prefill_tokens=prefill,
        context_tokens=context,
        draft_len=0 if prefill else drafted,
        verify_len=0 if prefill else min(cut, drafted),
        accepted=0 if prefill else min(accepted, cut, drafted),
        emitted=0 if prefill else 1,
    ),
    st.sampled_from("abcdef"),
    st.integers(0, 128),
    st.integers(0, 10_000),
    st.integers(0, 12),
    st.integers(0, 12),
    st.integers(0, 12),
)
times = st.floats(0.0, 1e4)
steps = st.builds(step, st.lists(rows, min_size=1, max_size=8), times, times, times, times)
shapes = st.builds(StepShape, st.floats(0.0, 10.0), st.floats(0.0, 10.0), st.floats(0.0, 0.1))


@given(steps, shapes)
def test_the_parts_sum_to_the_step_and_none_is_negative(record, shape):
    parts = split(record, shape)
    assert sum(part.total_ms for part in parts) == pytest.approx(record.step_ms, rel=1e-9, abs=1e-6)
    assert sum(part.verify_ms for part in parts) == pytest.approx(record.verify_ms, rel=1e-9, abs=1e-6)
    assert all(min(part.draft_ms, part.verify_ms, part.sample_ms) >= 0.0 for part in parts)


@given(st.lists(steps, max_size=6))
def test_the_requests_sum_to_everything_measured(records):
    found = attribute(records)
    assert found.attributed_ms + found.idle_ms == pytest.approx(found.measured_ms, rel=1e-9, abs=1e-6)


def test_a_step_by_hand():
    plain, drafted = row("plain", context_tokens=300), row("drafted", context_tokens=100, draft_len=4, verify_len=3)
    reading = row("reading", prefill_tokens=5)
    parts = split(step([plain, drafted, reading]), StepShape(6.0, 0.2, 0.01))
    # 1 + 4 + 5 tokens: 6 + 2 + 4 = 12 ms by the shape, a third of it the cache's.
    assert [part.verify_ms for part in parts] == pytest.approx(
        [10 / 3 * 0.75 + 20 / 3 * 0.1, 10 / 3 * 0.25 + 20 / 3 * 0.4, 20 / 3 * 0.5]
    )
    assert [part.draft_ms for part in parts] == [0.0, 1.0, 0.0]
    assert [part.sample_ms for part in parts] == pytest.approx([2 / 5, 8 / 5, 0.0])
    assert [part.overhead_ms for part in parts] == pytest.approx([1 / 3] * 3)


def test_a_request_is_known_by_what_it_took():
    records = [
        step([row(prefill_tokens=7), row("b")]),
        step([row(draft_len=4, verify_len=4, accepted=2, emitted=3), row("b", emitted=1)]),
    ]
    own = attribute(records, StepShape(1.0, 0.0, 0.0)).requests["a"]
    assert (own.prompt_tokens, own.output_tokens, own.steps, own.drafts) == (7, 3, 1, 1)
    assert (own.drafted, own.verified, own.accepted) == (4, 4, 2)
    assert own.prefill_ms == pytest.approx(10 * 7 / 8)
    assert own.verify_ms == pytest.approx(10 * 5 / 6)


def test_the_shape_is_found_despite_noisy_neighbours():
    rng = np.random.default_rng(3)
    records = []
    for i in range(300):
        batch = [row(str(j), context_tokens=int(rng.integers(2000)), verify_len=int(rng.integers(9))) for j in range(4)]
        tokens, context = sum(1 + r.verify_len for r in batch), sum(r.context_tokens for r in batch)
        ms = (5.0 + 0.3 * tokens + 0.002 * context) * rng.lognormal(0.0, 0.02) * (10.0 if i % 25 == 0 else 1.0)
        records.append(step(batch, verify_ms=ms))
    shape = fit_shape(records)
    assert (shape.fixed_ms, shape.token_ms, shape.context_ms) == pytest.approx((5.0, 0.3, 0.002), rel=0.15)


def test_time_that_the_cache_saves_is_never_negative():
    records = [step([row(context_tokens=c)], verify_ms=20.0 - c / 100) for c in range(0, 1000, 100)]
    assert fit_shape(records).context_ms == 0.0
