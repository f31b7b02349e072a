"""Synthetic truth: a machine whose mood drifts, arms whose true ratio is known, a thousand experiments."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from decodeloop.evaluation.arms import Measurement, Run, faults, order
from decodeloop.evaluation.card import Card
from decodeloop.evaluation.card_compare import welch
from decodeloop.evaluation.statistics import attainment, cliff, paired_ratio, ratio_of

BLOCKS = 8
EXPERIMENTS = 1000


def drift(rng, turns, burst=0.0):
    """A random walk and a steady trend: half of the speed comes and goes. burst: lost by a few turns in a row."""
    walk = np.cumsum(rng.normal(0.0, 0.06, turns))
    trend = rng.normal(0.0, 0.01) * np.arange(turns)
    return np.exp(walk + trend - burst * (np.abs(np.arange(turns) - rng.integers(turns)) < 3))


def experiment(rng, ratio, noise=0.03, burst=0.0):
    """[blocks] rates of two arms, as mirrored blocks give them: each turn at the machine's mood of its moment."""
    names = ["off", "on"]
    mood = iter(drift(rng, 4 * BLOCKS, burst))
    rates = {name: [] for name in names}
    for block in range(BLOCKS):
        seconds = dict.fromkeys(names, 0.0)
        for name in order(names, block):
            speed = 100.0 * next(mood) * (ratio if name == "on" else 1.0) * math.exp(rng.normal(0.0, noise))
            seconds[name] += 50.0 / speed
        for name in names:
            rates[name].append(100.0 / seconds[name])
    return rates


def test_the_interval_covers_the_true_ratio_under_shared_drift():
    rng = np.random.default_rng(11)
    found = [paired_ratio(rates["on"], rates["off"]) for rates in (experiment(rng, 1.2) for _ in range(EXPERIMENTS))]
    covered = sum(one.low <= 1.2 <= one.high for one in found)
    assert 0.93 <= covered / EXPERIMENTS <= 0.97
    assert np.exp(np.mean([math.log(one.ratio) for one in found])) == pytest.approx(1.2, rel=0.005)


def test_a_neighbour_that_comes_and_goes_makes_it_wider_not_wrong():
    """A third of the speed lost for five turns: outliers widen a t interval more than they move its middle."""
    rng = np.random.default_rng(18)
    made = (experiment(rng, 1.2, burst=0.4) for _ in range(EXPERIMENTS))
    found = [paired_ratio(rates["on"], rates["off"]) for rates in made]
    assert sum(one.low <= 1.2 <= one.high for one in found) / EXPERIMENTS >= 0.93


def test_equal_arms_are_called_different_in_one_of_twenty_at_most():
    rng = np.random.default_rng(12)
    found = [paired_ratio(rates["on"], rates["off"]) for rates in (experiment(rng, 1.0) for _ in range(EXPERIMENTS))]
    assert sum(one.low > 1.0 or one.high < 1.0 for one in found) / EXPERIMENTS <= 0.055  # 0.05 and its own noise


def test_unpaired_means_would_not_do():
    """What pairing is for: the same experiments, their arms compared as independent samples, say nothing."""
    rng = np.random.default_rng(13)
    wide = []
    for _ in range(100):
        rates = {name: np.log(own) for name, own in experiment(rng, 1.2).items()}
        paired = ratio_of(rates["on"] - rates["off"])
        wide.append(welch(rates["off"], rates["on"], 0.95) / math.log(paired.high / paired.ratio))
    assert np.median(wide) > 2.0


def test_the_unpaired_interval_of_two_cards_covers():
    rng = np.random.default_rng(14)
    covered = 0
    for _ in range(EXPERIMENTS):
        a, b = rng.normal(0.0, 0.05, 8), rng.normal(0.1, 0.15, 12)
        covered += abs(b.mean() - a.mean() - 0.1) <= welch(a, b, 0.95)
    assert 0.93 <= covered / EXPERIMENTS <= 0.97


def test_attainment_covers_when_blocks_have_moods():
    """Requests of a block succeed together: a binomial interval would cover far less."""
    rng = np.random.default_rng(15)
    covered, naive = 0, 0
    for _ in range(EXPERIMENTS):
        chances = rng.beta(16, 4, 24)
        met = rng.binomial(30, chances)
        found = attainment(met.tolist(), [30] * 24)
        covered += found.low <= 0.8 <= found.high
        share = met.sum() / 720
        naive += abs(share - 0.8) <= 1.96 * math.sqrt(share * (1 - share) / 720)
    assert 0.93 <= covered / EXPERIMENTS <= 0.97
    assert naive / EXPERIMENTS < 0.85


LOADS = (1, 2, 4, 8, 16, 32, 64)


def gain(load, at):
    """Falls with the logarithm of load and is 1 at `at`."""
    return (at / load) ** 0.15


def test_the_cliff_is_found_within_one_step_of_the_sweep():
    rng = np.random.default_rng(16)
    right = 0
    for _ in range(300):
        truth = float(np.exp(rng.uniform(math.log(2), math.log(40))))
        cells = {}
        for load in LOADS:
            rates = experiment(rng, gain(load, truth), noise=0.02)
            cells[load] = paired_ratio(rates["on"], rates["off"])
        last, first = cliff(cells)
        place = sum(load <= truth for load in LOADS)  # LOADS[place - 1] <= truth < LOADS[place]
        low, high = LOADS[max(place - 2, 0)], LOADS[min(place + 1, len(LOADS) - 1)]
        right += (last is None or low <= last <= high) and (first is None or low <= first <= high)
    assert right / 300 >= 0.95


def test_honest_runs_are_seldom_called_invalid():
    """A/A: the gates themselves raise false alarms in one of fifty at most."""
    rng, invalid = np.random.default_rng(17), 0
    for _ in range(300):
        run = Run()
        for block in range(BLOCKS):
            for name in order(["a", "b"], block):
                lengths = tuple(int(n) for n in rng.geometric(1 / 60, 8))
                errors = int(rng.binomial(8, 0.02))
                one = Measurement(
                    tokens=sum(lengths), seconds=1.0, requests=8, errors=errors, output_tokens=lengths,
                    ttft_ms=tuple(rng.lognormal(4, 0.3, 8)), client_lag_ms=tuple(rng.exponential(0.2, 8)),
                )  # fmt: skip
                run.add(name, block, one)
        invalid += bool(faults(run))
    assert invalid / 300 <= 0.02


def test_a_card_has_no_field_without_a_name_in_the_docs():
    """Every part of a card is a part that the documentation lists."""
    text = (Path(__file__).parents[2] / "docs" / "evaluation.md").read_text()
    parts = [name for name in Card.__struct_fields__ if name not in ("schema", "sha256", "economics", "time")]
    assert [name for name in parts if name not in text] == []
