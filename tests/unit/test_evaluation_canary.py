"""Watching a roll-out: false alarms stay rare however often one looks, true harm is found."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.evaluation.canary import Standing, decided, watch
from measured import plan, results


def rates(rng, blocks, effect, noise=0.03):
    """Shared drift of 30 %, own noise."""
    drift = 100 * np.exp(np.cumsum(rng.normal(0, 0.1, blocks)))
    return [float(x) for x in drift * np.exp(effect + rng.normal(0, noise, blocks))], [
        float(x) for x in drift * np.exp(rng.normal(0, noise, blocks))
    ]


def test_equal_arms_are_seldom_told_apart_at_any_time():
    rng = np.random.default_rng(0)
    alarms = sum(watch(*rates(rng, 60, 0.0)).standing is not Standing.OPEN for _ in range(400))
    assert alarms / 400 <= 0.05


def test_harm_is_found_and_soon():
    rng = np.random.default_rng(1)
    found = [watch(*rates(rng, 60, -0.10)) for _ in range(100)]
    assert all(one.standing is Standing.SLOWER for one in found)
    assert np.median([one.decided_at for one in found]) <= 15
    assert all(one.high < 1.0 for one in found)


def test_a_gain_is_found_and_a_decision_stands():
    new, old = rates(np.random.default_rng(2), 40, 0.2)
    first = watch(new, old)
    assert first.standing is Standing.FASTER
    assert watch([*new, 1.0, 1.0], [*old, 9.0, 9.0]) == first


def test_too_little_decides_nothing():
    one = watch([2.0], [1.0])
    assert (one.standing, one.low, one.blocks) == (Standing.OPEN, 0.0, 1)
    with pytest.raises(ValueError, match="no block"):
        watch([], [])


def test_all_levels_and_arms_must_be_decided():
    def faster_at(levels):
        def seconds(level, block, place, arm):
            wobble = 1 + 0.01 * ((block * 7 + place + len(arm)) % 3)
            return wobble * (1.0 if arm == "on" and level in levels else 2.0)

        return results(plan(blocks=10), seconds=seconds)

    assert decided(faster_at({1.0, 4.0}))
    assert not decided(faster_at({1.0}))
    assert not decided(results(plan(blocks=1)))
