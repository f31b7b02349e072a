"""The wanted share of answers ends in time, whatever answers come."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.policy.attainment import MOST, STEP, Presumptions
from decodeloop.policy.bounded import MAX_CLASSES
from decodeloop.policy.options import read_options
from decodeloop.types import RequestClass

KEY, OTHER = ("t", RequestClass.CODE_EDIT), ("t", RequestClass.GENERAL_CHAT)
ROOM = MOST - STEP


@given(
    st.lists(st.floats(-ROOM, ROOM), min_size=1, max_size=300),
    st.sampled_from([0.5, 0.8, 0.9, 0.95, 0.99]),
)
def test_the_late_share_tends_to_the_target_whatever_answers_need(needs, attainment):
    """needs: how far each answer had to be presumed to be behind in order to end in time; any sequence at all."""
    presumed, late = Presumptions(attainment, MOST), 0
    for need in needs:
        fails = need > presumed.tokens(KEY)
        presumed.ended(KEY, late=fails)
        late += fails
    moved = presumed.tokens(KEY) / (STEP * len(needs))
    assert late / len(needs) == pytest.approx(1.0 - attainment + moved)
    assert abs(moved) <= MOST / (STEP * len(needs))


@given(st.lists(st.booleans(), max_size=100), st.floats(0.0, 100.0), st.floats(0.01, 0.99))
def test_never_beyond_what_the_dial_allows(outcomes, most, attainment):
    presumed = Presumptions(attainment, most)
    for late in outcomes:
        presumed.ended(KEY, late=late)
        assert abs(presumed.tokens(KEY)) <= min(most, MOST)


@pytest.mark.parametrize("attainment", [0.8, 0.9, 0.95])
def test_it_finds_the_quantile_of_what_answers_need(attainment):
    rng = np.random.default_rng(0)
    presumed, found = Presumptions(attainment, MOST), []
    for need in rng.normal(2.0, 4.0, 4000):
        presumed.ended(KEY, late=need > presumed.tokens(KEY))
        found.append(presumed.tokens(KEY))
    quantile = float(np.quantile(2.0 + 4.0 * rng.standard_normal(100_000), attainment))
    assert np.median(found[1000:]) == pytest.approx(quantile, abs=1.0)


def test_it_rises_fast_and_falls_as_fast_as_the_target_permits():
    presumed = Presumptions(0.9, MOST)
    presumed.ended(KEY, late=True)
    assert presumed.tokens(KEY) == pytest.approx(0.9 * STEP)
    for _ in range(9):
        presumed.ended(KEY, late=False)
    assert presumed.tokens(KEY) == pytest.approx(0.0)
    presumed.ended(KEY, late=False)
    assert presumed.tokens(KEY) < 0.0  # what is in time anyway may be later


def test_classes_learn_apart_and_are_not_kept_without_end():
    presumed = Presumptions(0.9, MOST)
    presumed.ended(KEY, late=True)
    assert presumed.tokens(OTHER) == 0.0
    for i in range(MAX_CLASSES):
        presumed.ended((f"{i}", RequestClass.SQL), late=False)
    assert len(presumed.describe()) == MAX_CLASSES
    assert presumed.tokens(KEY) == 0.0


def test_the_share_in_time_is_reported():
    presumed = Presumptions(0.9, MOST)
    for i in range(10):
        presumed.ended(KEY, late=i < 4)
    told = {"tenant": "t", "class": "code_edit", "tokens": pytest.approx(0.6 * STEP * 5), "in_time": 0.6}
    assert presumed.describe() == [told]


@pytest.mark.parametrize("attainment", [0.0, 1.0, -0.1, float("nan")])
def test_an_attainment_that_is_no_share_is_refused(attainment):
    with pytest.raises(ValueError, match="attainment"):
        read_options({"attainment": attainment})
