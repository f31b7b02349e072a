"""The frontier is what was measured: steps, nothing between."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.frontier import Point, best_work, goodputs, pareto, picks, points, stairs
from decodeloop.evaluation.statistics import Share
from decodeloop.types import Slo
from synthetic_results import EDIT, Truth, results


def point(speed, work, arm="a", share=None):
    return Point(
        arm=arm,
        level=1.0,
        user_tokens_per_s=speed,
        output_per_device=work,
        total_per_device=2 * work,
        offered_per_s=4.0,
        served_per_s=4.0,
        met_share=None if share is None else Share(share, 0.0, 1.0, 100),
        dropped=0.0,
        stall_ms=0.0,
        requests=100,
    )


measured = st.lists(st.builds(point, st.integers(1, 50).map(float), st.integers(1, 50).map(float)), min_size=1)


@given(measured)
def test_the_frontier_beats_everything_and_nothing_on_it_is_beaten(found):
    kept = pareto(found)
    for p in found:
        assert any(
            q.user_tokens_per_s >= p.user_tokens_per_s and q.output_per_device >= p.output_per_device for q in kept
        )
    for p in kept:
        assert not any(
            q.user_tokens_per_s > p.user_tokens_per_s and q.output_per_device > p.output_per_device for q in found
        )


@given(measured)
def test_no_corner_promises_what_was_not_measured(found):
    corners = stairs(found)
    for x, y in corners:
        assert y == 0.0 or y <= best_work(found, x)
    assert all(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(corners))


def test_steps_not_slopes():
    found = [point(10.0, 100.0), point(50.0, 20.0)]
    assert stairs(found) == [(0.0, 100.0), (10.0, 100.0), (10.0, 20.0), (50.0, 20.0), (50.0, 0.0)]
    assert best_work(found, 11.0) == 20.0
    assert best_work(found, 51.0) is None
    assert stairs([]) == []


def test_points_of_a_run_by_hand():
    truth = Truth(speed={"off": {EDIT: 1.0}, "adaptive": {EDIT: 2.0}}, noise=1e-9, drift=1e-9, requests=5)
    off, on = points(results(truth), devices=2, slo=Slo(tpot_ms=7.5))
    assert (off.user_tokens_per_s, on.user_tokens_per_s) == pytest.approx((100.0, 200.0), rel=1e-3)
    # 40 tokens in 50 ms and 39 gaps of 10 ms, on two devices; 20 tokens of prompt for 40 of output.
    assert off.output_per_device == pytest.approx(40 / 0.44 / 2, rel=1e-3)
    assert off.total_per_device == pytest.approx(1.5 * off.output_per_device)
    assert (off.met_share.share, on.met_share.share) == (0.0, 1.0)
    assert on.goodput_per_s == pytest.approx(1 / 0.245, rel=1e-3)
    assert off.stall_ms == pytest.approx(50.0, rel=1e-3)


def test_what_failed_was_offered_and_met_nothing():
    found = points(results(Truth(errors={"adaptive": 3})), slo=Slo())
    on = next(p for p in found if p.arm == "adaptive")
    assert on.dropped == pytest.approx(0.1)
    assert on.met_share.share == pytest.approx(0.9)


def test_goodput_needs_a_level_that_attains_it():
    found = [point(1.0, 9.0, share=0.91), point(2.0, 8.0, share=0.96)]
    rows = {row.attainment: row.per_s for row in goodputs(found)}
    assert rows == {0.90: pytest.approx(4 * 0.96), 0.95: pytest.approx(4 * 0.96), 0.99: None}
    assert goodputs([point(1.0, 1.0)]) == []


def test_each_arm_picks_its_best_level_within_the_objectives():
    found = [point(1.0, 9.0, share=0.5), point(2.0, 8.0, share=0.96), point(1.0, 9.0, "b", share=0.1)]
    a, b = picks(found)
    assert (a.arm, a.point) == ("a", found[1])
    assert (b.arm, b.point) == ("b", None)


def test_every_arm_and_level_has_its_point():
    truth = Truth(levels=(1.0, 4.0), requests=3)
    assert [(p.arm, p.level) for p in points(results(truth))] == [
        ("off", 1.0),
        ("off", 4.0),
        ("adaptive", 1.0),
        ("adaptive", 4.0),
    ]
