"""What serving costs, against figures worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.economics import (
    Margin,
    Money,
    break_even_factor,
    capacity_usd_per_request,
    devices_needed,
    marginal_usd,
    mix_swings,
    paired_delta,
    usd_per_million_tokens,
    volume_weighted_delta,
)
from decodeloop.evaluation.prices import given as given_price
from decodeloop.evaluation.prices import read_prices


def test_a_million_tokens():
    # 2 H100 at 3.60 USD/h giving 2,000 tokens/s: 7.2 / 7.2e6 tokens an hour.
    assert usd_per_million_tokens(2 * 3.6, 2000.0) == pytest.approx(1.0)
    assert usd_per_million_tokens(3.6, 0.0) == math.inf


def test_capacity_and_marginal_agree_on_a_device_that_is_busy_all_the_time():
    assert capacity_usd_per_request(3.6, 4.0) == pytest.approx(0.00025)
    assert marginal_usd(3.6, 250.0) == pytest.approx(0.00025)


def test_a_load_needs_whole_devices():
    assert devices_needed(10.0, 4.0) == 3
    assert devices_needed(8.0, 4.0) == 2
    assert devices_needed(0.0, 4.0) == 1
    with pytest.raises(ValueError, match="without goodput"):
        devices_needed(1.0, 0.0)


def test_the_delta_by_hand():
    # 900 edits from 2 to 1 USD, 100 stories from 4 to 5: (-900 + 100) / (1800 + 400).
    assert volume_weighted_delta(
        {"edit": 900, "story": 100}, {"edit": 2.0, "story": 4.0}, {"edit": 1.0, "story": 5.0}
    ) == (pytest.approx(-800 / 2200))


def test_the_delta_is_not_the_mean_of_the_classes_deltas():
    # Cheap requests by the thousand do not outweigh what dear ones cost.
    volume, off = {"small": 99.0, "dear": 1.0}, {"small": 1.0, "dear": 1000.0}
    assert volume_weighted_delta(volume, off, {"small": 0.5, "dear": 1100.0}) > 0.0


def test_a_class_without_a_cost_is_named():
    with pytest.raises(ValueError, match="sql"):
        volume_weighted_delta({"edit": 1.0, "sql": 1.0}, {"edit": 1.0}, {"edit": 1.0, "sql": 1.0})


def test_the_interval_of_the_delta_is_over_blocks():
    off = [{"a": 2.0}, {"a": 4.0}, {"a": 8.0}]
    steady = paired_delta({"a": 1.0}, off, [{"a": 1.0}, {"a": 2.0}, {"a": 4.0}])
    assert (steady.share, steady.low, steady.high) == pytest.approx((-0.5, -0.5, -0.5))
    assert steady.saves
    wild = paired_delta({"a": 1.0}, off, [{"a": 1.0}, {"a": 8.0}, {"a": 4.0}])
    assert wild.low < wild.share < wild.high
    assert not wild.saves
    assert not wild.costs


def test_the_interval_covers_the_truth_at_its_level():
    """Synthetic truth: 20 % saved, blocks that drift together and err by 3 % each."""
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(1000):
        drift = rng.lognormal(0.0, 0.3, 8)
        off = [
            {"a": float(d * e), "b": 3.0 * float(d * e)} for d, e in zip(drift, rng.lognormal(0, 0.03, 8), strict=True)
        ]
        on = [
            {"a": 0.8 * float(d * e), "b": 2.4 * float(d * e)}
            for d, e in zip(drift, rng.lognormal(0, 0.03, 8), strict=True)
        ]
        found = paired_delta({"a": 10.0, "b": 1.0}, off, on)
        covered += found.low <= -0.2 <= found.high
    assert 930 <= covered <= 970


def test_margin_by_hand():
    margin = Margin(price=0.010, cost=0.004, other_share=0.25)
    assert margin.usd == pytest.approx(0.0035)
    assert margin.share == pytest.approx(0.35)


def test_power_is_paid_where_the_price_does_not_hold_it():
    money = Money(price=given_price(1.0), devices=2, watts=700.0, usd_per_kwh=0.1, pue=1.2)
    assert money.usd_per_hour == pytest.approx(2.0 + 0.7 * 0.1 * 1.2)
    assert Money(price=given_price(1.0), watts=None, usd_per_kwh=0.1).usd_per_hour == 1.0


costs = st.dictionaries(st.sampled_from("abcd"), st.tuples(*[st.floats(0.01, 100.0)] * 3), min_size=2)


@given(costs)
def test_at_its_break_even_volume_a_class_makes_the_delta_nothing(classes):
    volume, off, on = ({c: values[i] for c, values in classes.items()} for i in range(3))
    for c in classes:
        factor = break_even_factor(volume, off, on, c)
        if factor is not None and 1e-6 < factor < 1e6:
            bill = sum(w * off[d] for d, w in {**volume, c: volume[c] * factor}.items())
            delta = volume_weighted_delta({**volume, c: volume[c] * factor}, off, on)
            assert delta * bill == pytest.approx(0.0, abs=1e-9 * bill * max(1.0, *(on[d] / off[d] for d in classes)))


@given(costs)
def test_more_of_a_class_moves_the_delta_towards_its_own(classes):
    volume, off, on = ({c: values[i] for c, values in classes.items()} for i in range(3))
    now = volume_weighted_delta(volume, off, on)
    for swing in mix_swings(volume, off, on):
        own = on[swing.name] / off[swing.name] - 1.0
        assert (swing.at_high - now) * (own - now) >= -1e-9
        assert (swing.at_low - now) * (own - now) <= 1e-9


def test_the_table_that_ships_is_dated_and_editable():
    table = read_prices()
    assert table.price("h100").usd_per_hour == pytest.approx(0.5 * (1.99 + 5.00))
    assert table.as_of in table.price("B200").said
    with pytest.raises(ValueError, match="A100-80"):
        table.price("abacus")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("schema: x/1\nas_of: '2026-05'\nsource: s\ndevices: {}", "decodeloop.prices/1"),
        ("schema: decodeloop.prices/1\nas_of: spring\nsource: s\ndevices: {}", "month"),
        ("schema: decodeloop.prices/1\nas_of: '2026-05'\nsource: s\ndevices: {A: {low: 3, high: 2}}", "span"),
        ("schema: decodeloop.prices/1\nas_of: '2026-05'\nsource: s\ndevices: {A: {low: 3, hihg: 2}}", "hihg"),
    ],
)
def test_a_table_that_is_wrong_says_where(text, why):
    with pytest.raises(ValueError, match=why):
        read_prices(text)
