"""The cost surface on made-up machines (synthetic: a known staircase with noise), so that the truth is at hand."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_curve import MOST_HELD
from decodeloop.policy.cost_fit import CostSample, fit, held_out_errors, nonnegative_least_squares, relative_errors
from decodeloop.policy.draft_cost import DraftSample
from made_up_machine import measure, observe, record, stairs, true_samples


def test_held_out_errors_are_within_the_bar():
    errors = held_out_errors(measure())
    assert np.median(errors) <= 0.05
    assert np.percentile(errors, 95) <= 0.15


def test_noise_and_outliers_are_averaged_away():
    samples = measure()
    errors = relative_errors(fit(samples), true_samples(samples))
    assert np.median(errors) <= 0.01
    assert errors.max() <= 0.05


def test_stairs_are_kept():
    surface = fit(measure(noise=0.0, outliers=0.0))
    at = {tokens: float(surface.ms(np.array([tokens]), 0.0, 1.0)[0]) for tokens in (4, 5, 6, 8, 9, 12)}
    assert at[8] - at[6] < 0.25 * (at[9] - at[8])
    assert at[9] - at[8] == pytest.approx(1.8, rel=0.1)


@given(st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_never_falls_with_tokens_whatever_was_measured_and_seen(seed):
    rng = np.random.default_rng(seed)
    count = rng.integers(1, 12)
    surface = CostSurface(
        [
            CostSample(int(rng.integers(1, 60)), int(rng.integers(0, 5000)), 1, float(rng.uniform(0.1, 9)))
            for _ in range(count)
        ]
    )
    for step in range(30):
        observe(surface, record(step, verify_len=int(rng.integers(0, 40)), verify_ms=float(rng.uniform(0.1, 9))))
    tokens = np.arange(1, 3000)
    ms = surface.step_ms_many(tokens, 256, 1)
    assert np.all(np.diff(ms) >= -1e-9)
    assert np.all(ms > 0)
    assert ms[17] == surface.step_ms(18, 256, 1)


def test_one_point_is_enough_and_none_is_not():
    assert CostSurface([CostSample(1, 0, 1, 5.0)]).step_ms(1, 0, 1) == pytest.approx(5.0)
    with pytest.raises(ValueError, match="at least one"):
        CostSurface([])
    with pytest.raises(ValueError, match="no such step"):
        CostSample(0, 0, 1, 5.0)


def test_beyond_the_measured_range_it_lies_between_flat_and_proportional():
    surface = CostSurface(measure(noise=0.0, outliers=0.0))
    last = surface.step_ms(384, 2048, 8)
    for tokens in (500, 1000, 4000):
        low, high = surface.bounds_ms(tokens, 2048, 8)
        assert low <= last <= surface.step_ms(tokens, 2048, 8) <= high
        assert surface.step_ms(tokens, 2048, 8) <= last * tokens / 384
    assert surface.step_ms(1000, 2048, 8) == pytest.approx(float(stairs(1000, 2048, 8)), rel=0.1)


def test_a_noisy_neighbour_moves_the_level_and_not_the_shape():
    surface = CostSurface(measure())
    before = surface.step_ms(9, 256, 1) / surface.step_ms(1, 256, 1)
    for step in range(60):
        verify_len = 8 if step % 2 else 0
        observe(surface, record(step, verify_len=verify_len, verify_ms=1.6 * stairs(1 + verify_len, 256, 1)))
    assert surface.step_ms(1, 256, 1) == pytest.approx(1.6 * stairs(1, 256, 1), rel=0.1)
    assert surface.step_ms(9, 256, 1) / surface.step_ms(1, 256, 1) == pytest.approx(before, rel=0.03)


def test_one_spike_hardly_counts():
    surface = CostSurface(measure())
    for step in range(200):
        observe(surface, record(step, verify_ms=stairs(1, 256, 1)))
    before = surface.step_ms(1, 256, 1)
    observe(surface, record(200, verify_ms=100 * stairs(1, 256, 1)))
    assert surface.step_ms(1, 256, 1) <= 1.03 * before


def test_a_region_that_was_measured_wrong_is_learned():
    """The machine verifies 9 tokens 30 % slower than at start: the ratio to plain steps follows."""
    surface = CostSurface(measure())
    for step in range(600):
        wrong = step % 2
        ms = 1.3 * stairs(9, 256, 1) if wrong else stairs(1, 256, 1)
        observe(surface, record(step, verify_len=8 * wrong, verify_ms=ms))
    learned = surface.step_ms(9, 256, 1) / surface.step_ms(1, 256, 1)
    assert learned == pytest.approx(1.3 * stairs(9, 256, 1) / stairs(1, 256, 1), rel=0.06)


def test_sampling_and_overhead_belong_to_the_step():
    surface = CostSurface(measure())
    for step in range(300):
        rows, verify_len = 1 + step % 4, step % 3
        tokens = rows * (1 + verify_len)
        forward = stairs(tokens, 256, rows)
        observe(
            surface, record(step, rows=rows, verify_len=verify_len, verify_ms=forward, sample_ms=1.0 + 0.2 * tokens)
        )
    found = surface.step_ms(8, 256, 4) + surface.speculating_ms(1)
    assert found == pytest.approx(stairs(8, 256, 4) + 2.6, rel=0.06)


def test_staleness_counts_from_the_last_step_like_this_one():
    surface = CostSurface(measure())
    assert surface.staleness(1, 256, 1) == 0
    assert math.isinf(surface.staleness(20000, 256, 1))
    for step in range(100):
        observe(surface, record(step, verify_len=8))
    assert surface.staleness(9, 256, 1) == 0
    assert surface.staleness(1, 256, 1) == 99


def test_free_drafters_cost_nothing_and_paid_ones_what_was_measured():
    samples = [DraftSample("small", depth, n, 0.5 + 0.4 * depth + 0.05 * depth * n) for depth in (1, 4) for n in (1, 8)]
    surface = CostSurface(measure(), samples)
    assert surface.draft_ms("small", 3, 4) == pytest.approx(0.5 + 1.2 + 0.6, rel=0.05)
    assert surface.draft_ms("small", 0, 4) == 0.0
    for step in range(50):
        observe(surface, record(step, verify_len=4, drafter="ngram", draft_ms=0.3))
    observe(surface, record(50, verify_len=4, drafter="small", draft_ms=0.3 + 2.3))
    assert surface.draft_ms("small", 4, 1) == pytest.approx(2.3, rel=0.05)


def test_of_steps_with_long_prompts_not_all_shorter_ones_are_held():
    surface = CostSurface(measure())
    found = surface.step_ms_from(100_000, 3, 256, 4)
    assert found == pytest.approx([surface.step_ms(100_000 + more, 256, 4) for more in range(3)], rel=1e-12)
    assert all(len(curve._counts) <= MOST_HELD for curve in surface._curves.values())


def test_a_drafter_that_slows_down_and_recovers_is_followed():
    surface = CostSurface(measure(), [DraftSample("small", 4, 1, 2.0), DraftSample("small", 2, 1, 1.0)])
    for ms in (12.0, 2.0):
        for step in range(60):
            observe(surface, record(step, verify_len=4, drafter="small", draft_ms=ms))
        assert surface.draft_ms("small", 4, 1) == pytest.approx(ms, rel=0.15)


def test_an_unmeasured_drafter_is_taken_for_a_tenth_of_a_step_a_pass():
    surface = CostSurface([CostSample(1, 0, 1, 10.0)])
    assert surface.draft_ms("new", 3, 1) == pytest.approx(3.0, rel=0.01)
    assert surface.catch_up_ms("new", 40) > surface.catch_up_ms("new", 4) > 0.0


def test_catching_up_is_learned_apart_from_drafting():
    surface = CostSurface([CostSample(1, 0, 1, 10.0)])
    for step in range(300):
        missed = (step % 3) * 20
        observe(
            surface,
            record(step, verify_len=2 + step % 2, drafter="small", draft_ms=0.5 * (2 + step % 2) + 0.1 * missed),
            catch_up={"small": missed},
        )
    assert surface.catch_up_ms("small", 40) == pytest.approx(4.0, rel=0.1)
    assert surface.draft_ms("small", 3, 1) == pytest.approx(1.5, rel=0.1)


@pytest.mark.parametrize(
    "bad", [record(verify_ms=0.0), record(verify_ms=math.nan), record(rows=0), record(draft_ms=math.inf)]
)
def test_impossible_records_teach_nothing(bad):
    surface = CostSurface(measure())
    before = surface.step_ms(4, 256, 1)
    observe(surface, bad)
    assert surface.step_ms(4, 256, 1) == before


def test_goes_through_json():
    surface = CostSurface(measure(), [DraftSample("small", 4, 1, 2.0)])
    again = CostSurface.from_json(json.loads(json.dumps(surface.to_json())))
    assert again.step_ms(7, 300, 2) == surface.step_ms(7, 300, 2)
    assert again.draft_ms("small", 4, 1) == surface.draft_ms("small", 4, 1)
    json.dumps(surface.describe(), allow_nan=False)


@pytest.mark.parametrize(
    "bad", [{}, [], None, "x", {"schema": "decodeloop.cost/1"}, {"schema": "decodeloop.cost/1", "samples": [[1]]}]
)
def test_other_json_is_refused(bad):
    with pytest.raises(ValueError, match="not a cost surface"):
        CostSurface.from_json(bad)


@given(st.integers(0, 10**6))
@settings(max_examples=40, deadline=None)
def test_nonnegative_least_squares_meets_its_optimality_conditions(seed):
    rng = np.random.default_rng(seed)
    a, b = rng.normal(size=(12, 5)), rng.normal(size=12)
    x = nonnegative_least_squares(a, b)
    gradient = a.T @ (b - a @ x)
    assert np.all(x >= 0)
    assert np.all(gradient <= 1e-8)
    assert np.all(np.abs(gradient[x > 0]) <= 1e-8)


def test_reading_that_took_less_than_expected_does_not_make_drafting_cheap():
    """Left out for long, a drafter has much to read; nobody knows beforehand that reading costs it nothing."""
    surface = CostSurface([CostSample(1, 0, 1, 5.0)], [DraftSample("small", depth, 1, 8.0 * depth) for depth in (1, 4)])
    for step in (600, 1200, 1800):
        probe = record(step, verify_len=2, drafter="small", draft_ms=16.0)
        observe(surface, probe, catch_up={"small": 200})
        assert surface.draft_ms("small", 2, 1) == pytest.approx(16.0, rel=0.05)
        assert surface.draft_ms("small", 7, 1) == pytest.approx(56.0, rel=0.1)
    assert surface.catch_up_ms("small", 200) < 1.0
