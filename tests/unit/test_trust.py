"""What recorded steps took, the time between them included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decodeloop.evaluation.trust import calibrated, error, with_pauses
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.types import Load, Reason, RequestClass, StepRecord, StepRow

ROW = StepRow(
    request_id="r", tenant="t", request_class=RequestClass.SQL, reason=Reason.FIXED, context_tokens=100, emitted=1
)


def step(number, at_ms, ms=10.0, drafted=0):
    return StepRecord(
        step=number,
        at_s=at_ms / 1e3,
        load=Load(1, 0, 100, 1.0),
        draft_ms=0.0,
        verify_ms=ms - 1.0,
        sample_ms=0.5,
        overhead_ms=0.5,
        step_ms=ms,
        rows=(replace(ROW, draft_len=drafted, verify_len=drafted),),
    )


def test_what_passes_until_the_next_step_belongs_to_a_step_unless_nobody_ran_or_others_did():
    steps = [step(1, 0.0), step(2, 12.0), step(3, 22.0), step(4, 60.0), step(9, 71.0), step(10, 80.0)]
    found = with_pauses(steps)
    assert [record.step_ms for record in found] == pytest.approx([12.0, 10.0, 10.0, 10.0, 10.0, 10.0])
    assert found[0].overhead_ms == pytest.approx(2.5)
    for record in found:
        parts = record.draft_ms + record.verify_ms + record.sample_ms + record.overhead_ms
        assert parts == pytest.approx(record.step_ms)
    assert found[1:] == steps[1:]


def test_a_surface_is_taught_pauses_as_well():
    samples = [CostSample(n, 100, 1, 9.0) for n in (1, 2, 4, 8)]
    told, trust = calibrated(CostSurface(samples), [step(i, 12.0 * i) for i in range(400)], source="here")
    without, _ = calibrated(CostSurface(samples), [step(i, 10.0 * i) for i in range(400)], source="here")
    assert told.step_ms(1, 100, 1) - without.step_ms(1, 100, 1) == pytest.approx(2.0, rel=0.1)
    assert trust.error.median == pytest.approx(0.0, abs=0.02)
    assert trust.error.total == pytest.approx(0.0, abs=0.02)


SAMPLES = [CostSample(n, 100, 1, 9.0) for n in (1, 2, 4, 8)]


def test_a_surface_keeps_the_pace_of_the_whole_record_not_of_its_end():
    """A neighbour came for the last fifth: the surface that learned from it last would take every step for slow."""
    slowed = [step(i, 100.0 * i, 10.0 if i < 400 else 18.0) for i in range(500)]
    _, trust = calibrated(CostSurface(SAMPLES), slowed, source="here")
    assert trust.error.total == pytest.approx(0.0, abs=0.01)


def test_each_step_is_foretold_by_those_before_it():
    slowed = [step(i, 100.0 * i, 10.0 if i < 300 else 18.0) for i in range(600)]
    _, trust = calibrated(CostSurface(SAMPLES), slowed, source="here")
    assert trust.foretold.median < 0.03
    assert trust.error.median > 0.2


def test_steps_in_which_no_drafter_was_asked_are_not_charged_for_it():
    asking = [replace(step(i, 30.0 * i, 12.0), draft_ms=2.0, verify_ms=9.0) for i in range(400)]
    surface, _ = calibrated(CostSurface(SAMPLES), asking, source="here")
    assert surface.free_draft_ms(1) == pytest.approx(2.0, rel=0.1)
    assert error(surface, [step(1, 0.0, 10.0)]).median < 0.02


def noisy(plain_ms, drafted_ms, *, sigma=0.2, count=4000):
    """Pairs of plain steps and of steps with 7 drafted tokens, in turn."""
    noise = np.exp(sigma * np.random.default_rng(0).standard_normal(count))
    ms = [drafted_ms if i // 2 % 2 else plain_ms for i in range(count)]
    return [step(i, 60.0 * i, ms[i] * float(noise[i]), 7 if i // 2 % 2 else 0) for i in range(count)]


def test_the_surfaces_own_error_is_told_from_noise_that_no_model_of_shapes_can_foresee():
    _, trust = calibrated(CostSurface(SAMPLES), noisy(10.0, 14.0), source="here")
    assert trust.noise.median == pytest.approx(0.2 * 0.6745, rel=0.15)
    assert trust.error.median == pytest.approx(trust.noise.median, rel=0.2)
    assert trust.shapes.p95 < 0.04
    assert "median of their own shape" in trust.said()
    _, unlearned = calibrated(CostSurface(SAMPLES), noisy(10.0, 60.0)[:80], source="here")
    assert unlearned.shapes.p95 > 0.1


def test_shapes_that_hardly_recur_tell_nothing_of_noise():
    _, trust = calibrated(CostSurface(SAMPLES), [step(i, 30.0 * i) for i in range(10)], source="here")
    assert trust.error is not None
    assert trust.noise is None
    assert "own shape" not in trust.said()
