"""Finding out costs a hundredth of any stretch of time, and one probe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.policy.lost_time import LOST_SHARE, LostTime

Step = tuple[float, float, float]  # ms, what a probe in it would be expected to take, and would take


@given(
    steps=st.lists(
        st.tuples(st.floats(1.0, 20.0), st.floats(0.0, 60.0), st.floats(0.0, 60.0)), min_size=200, max_size=400
    ),
    asks_every=st.integers(1, 60),
)
def test_any_stretch_of_time_loses_a_hundredth_and_one_probe_at_most(steps, asks_every):
    lost_time, took, lost = LostTime(), [], []
    for i, (plain_ms, expected_ms, probe_ms) in enumerate(steps):
        probes = i % asks_every == 0 and lost_time.affords_more
        if probes:
            lost_time.spend(expected_ms)
            lost_time.spend(probe_ms - expected_ms)
        lost.append(probe_ms if probes else 0.0)
        took.append(plain_ms + lost[-1])
        lost_time.pass_by(took[-1])
    for start in range(0, len(steps), 7):
        stretch_ms = lost_ms = most_ms = 0.0
        for step_ms, probe_ms in zip(took[start:], lost[start:], strict=True):
            stretch_ms, lost_ms, most_ms = stretch_ms + step_ms, lost_ms + probe_ms, max(most_ms, probe_ms)
            assert lost_ms <= LOST_SHARE * stretch_ms + most_ms + 1e-6
    assert lost_time.share == pytest.approx(sum(lost) / sum(took))


def test_a_clean_hour_buys_no_burst():
    lost_time = LostTime()
    lost_time.pass_by(3.6e6)
    lost_time.spend(40.0)
    assert not lost_time.affords_more
    lost_time.pass_by(3999.0)
    assert not lost_time.affords_more
    lost_time.pass_by(2.0)
    assert lost_time.affords_more


def test_what_turned_out_cheap_is_not_owed():
    lost_time = LostTime()
    lost_time.spend(40.0)
    lost_time.spend(0.2 - 40.0)
    lost_time.pass_by(21.0)
    assert lost_time.affords_more
