"""Statistics against scipy, known answers and their own coverage."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from decodeloop.evaluation.statistics import (
    against_best,
    attainment,
    cliff,
    confidence_sequence,
    holm,
    log_ratios,
    never_slower,
    p_slower,
    paired_ratio,
    ratio_of,
)
from decodeloop.evaluation.student import t_cdf, t_quantile


@given(st.floats(0.001, 0.999), st.integers(1, 200))
@settings(max_examples=40, deadline=None)
def test_t_is_scipys(p, df):
    assert t_quantile(p, df) == pytest.approx(float(stats.t.ppf(p, df)), rel=1e-8, abs=1e-9)


@given(st.floats(-30, 30), st.integers(1, 200))
@settings(max_examples=60, deadline=None)
def test_t_cdf_is_scipys(t, df):
    close = 1e-12 if abs(t) > 1e-3 else 1e-6  # there scipy's own loses digits
    assert t_cdf(t, df) == pytest.approx(float(stats.t.cdf(t, df)), abs=close)


def test_t_cdf_keeps_its_digits_near_zero():
    """With one degree of freedom it is 1/2 + arctan(t) / pi."""
    for t in (1e-9, -1e-6, 1e-4):
        assert t_cdf(t, 1) == pytest.approx(0.5 + math.atan(t) / math.pi, abs=1e-15)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0)])
def test_no_quantile_where_there_is_none(p, df):
    with pytest.raises(ValueError, match="no such quantile"):
        t_quantile(p, df)


def test_a_paired_ratio_is_deaf_to_the_machines_mood():
    rng = np.random.default_rng(0)
    mood = np.exp(rng.normal(0, 0.3, 8))
    theirs = 100 * mood * np.exp(rng.normal(0, 0.005, 8))
    ours = 120 * mood * np.exp(rng.normal(0, 0.005, 8))
    found = paired_ratio(ours, theirs)
    expected = stats.ttest_1samp(np.log(ours / theirs), 0.0).confidence_interval()
    assert found.ratio == pytest.approx(1.2, abs=0.01)
    assert (math.log(found.low), math.log(found.high)) == pytest.approx((expected.low, expected.high))
    assert not found.inconclusive
    assert ratio_of(log_ratios(ours, theirs), cells=36).low < found.low


def test_intervals_cover_as_stated():
    rng, covered = np.random.default_rng(1), 0
    for _ in range(1000):
        found = ratio_of(rng.normal(0.05, 0.1, 8))
        covered += found.low <= math.exp(0.05) <= found.high
    assert 0.93 < covered / 1000 < 0.97


def test_simultaneous_intervals_cover_together():
    rng, covered = np.random.default_rng(2), 0
    for _ in range(300):
        cells = [ratio_of(rng.normal(0.0, 0.1, 8), cells=20) for _ in range(20)]
        covered += all(cell.low <= 1.0 <= cell.high for cell in cells)
    assert covered / 300 > 0.91


def test_one_block_decides_nothing():
    alone = ratio_of(np.array([0.5]))
    assert (alone.low, alone.high, alone.inconclusive) == (0.0, math.inf, True)


@pytest.mark.parametrize(("ours", "theirs", "message"), [([1.0], [1.0, 2.0], "no pairs"), ([0.0], [1.0], "positive")])
def test_what_has_no_ratio_is_refused(ours, theirs, message):
    with pytest.raises(ValueError, match=message):
        log_ratios(ours, theirs)


def test_never_slower_is_claimed_over_cells_jointly():
    rng = np.random.default_rng(0)
    fine = {f"cell {i}": rng.normal(0.1, 0.01, 8) for i in range(10)}
    assert never_slower(fine).holds
    slow = {**fine, "slow": rng.normal(-0.06, 0.005, 8)}
    verdict = never_slower(slow)
    assert not verdict.holds
    assert verdict.worst == "slow"
    noisy = never_slower({**fine, "noisy": rng.normal(-0.06, 0.2, 8)})
    assert noisy.holds
    assert noisy.inconclusive == ("noisy",)
    assert not never_slower({"even": rng.normal(-0.01, 0.001, 8)}).holds  # above the floor, but under 1 on the whole
    assert not never_slower({"noise": rng.normal(0.1, 0.2, 8)}).holds  # nothing was shown
    with pytest.raises(ValueError, match="no cell"):
        never_slower({})


def test_the_best_is_chosen_on_other_blocks_than_it_is_compared_on():
    """Eight equal rivals and pure noise: the luckiest must not look better than it is."""
    rng, split, naive = np.random.default_rng(0), [], []
    for _ in range(300):
        ours = np.exp(rng.normal(0, 0.1, 8))
        rivals = {str(i): np.exp(rng.normal(0, 0.1, 8)) for i in range(8)}
        split.append(math.log(against_best(ours, rivals).ratio.ratio))
        naive.append(min(float(log_ratios(ours, rival).mean()) for rival in rivals.values()))
    assert abs(np.mean(split)) < 0.01
    assert np.mean(naive) < -0.03
    with pytest.raises(ValueError, match="halves"):
        against_best([1.0] * 3, {"a": [1.0] * 3})


def test_the_better_rival_is_found():
    found = against_best([1.0] * 8, {"slow": [0.5] * 8, "fast": [0.8] * 8})
    assert found.chosen == ("fast", "fast")
    assert found.ratio.ratio == pytest.approx(1.25)


def test_holm_steps_down():
    assert holm({"a": 0.001, "b": 0.02, "c": 0.03, "d": 0.9}) == {"a": True, "b": False, "c": False, "d": False}
    assert holm({"a": 0.01, "b": 0.02}) == {"a": True, "b": True}


def test_p_of_being_slower():
    rng = np.random.default_rng(0)
    logs = rng.normal(-0.05, 0.05, 8)
    assert p_slower(logs) == pytest.approx(float(stats.ttest_1samp(logs, 0.0, alternative="less").pvalue))
    assert p_slower(np.array([-1.0])) == 1.0
    assert p_slower(np.array([-1.0, -1.0])) == 0.0


def test_the_cliff_is_an_interval():
    truth = {1: 2.0, 2: 1.5, 4: 1.1, 8: 1.0, 16: 0.9, 32: 0.8}
    cells = {load: ratio_of(math.log(ratio) + np.linspace(-1e-3, 1e-3, 8)) for load, ratio in truth.items()}
    assert cliff(cells) == (4, 16)
    assert cliff({load: cells[load] for load in (1, 2, 4)}) == (4, None)
    assert cliff({load: cells[load] for load in (16, 32)}) == (None, 16)


def test_attainment_is_clustered_by_block():
    even = attainment([90] * 8, [100] * 8)
    assert (even.share, even.low, even.high) == (0.9, 0.9, 0.9)
    uneven = attainment([100, 100, 100, 60] * 2, [100] * 8)
    assert uneven.share == pytest.approx(0.9)
    assert uneven.high - uneven.low > 0.2  # 800 requests, but 8 blocks
    with pytest.raises(ValueError, match="no request"):
        attainment([0], [0])


def test_a_confidence_sequence_may_be_looked_at_after_every_block():
    """From the very first on: a variance estimated from few blocks must not raise alarms."""
    rng, missed = np.random.default_rng(0), 0
    for _ in range(1000):
        low, high = confidence_sequence(rng.normal(0.02, 0.1, 200))
        missed += bool(np.any(low > 0.02) or np.any(high < 0.02))
    assert missed / 1000 <= 0.05
    low, high = confidence_sequence(rng.normal(0.1, 0.05, 100))
    assert np.isinf(low[0])
    assert low[-1] > 0.05
    assert high[-1] < 0.15
