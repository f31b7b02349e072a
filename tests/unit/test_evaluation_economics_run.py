"""The bill of a run whose truth is known (synthetic)."""

from dataclasses import replace

import pytest

from decodeloop.evaluation.card_measures import acceptance
from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.economics_run import Source, bill, met, request_ms
from decodeloop.evaluation.prices import given
from decodeloop.types import Slo
from synthetic_results import CHAT, EDIT, SHARES, STORY, Truth, results

MONEY = Money(price=given(3.6))


def test_the_truth_is_found_class_by_class_and_weighted_by_volume():
    found = bill(results(), "adaptive", 1.0, MONEY)
    truth = {EDIT: -0.5, CHAT: -0.2, STORY: 1 / 0.9 - 1}
    for each in found.classes:
        assert each.delta.low <= truth[each.request_class] <= each.delta.high
        assert each.delta.share == pytest.approx(truth[each.request_class], abs=0.01)
        assert each.off.usd_per_request == pytest.approx(3.6 / 3600 * 0.4, rel=0.2)  # 40 tokens of 10 ms, drifting
    assert found.delta.share == pytest.approx(sum(SHARES[c] * truth[c] for c in truth), abs=0.01)
    assert found.delta.saves
    assert found.source is Source.SERVER


def test_a_small_class_that_loses_is_listed():
    tails = bill(results(), "adaptive", 1.0, MONEY).tails
    assert [tail.request_class for tail in tails] == [STORY]
    assert "costs more" in tails[0].tail
    assert "low acceptance (20 %" in tails[0].tail


def test_what_is_attributed_is_what_was_measured():
    run = results()
    whole = sum(request_ms(r) for r in run.requests)
    decoding = sum(turn.seconds for turn in run.turns) * 1e3 - 50.0 * len(run.requests)
    assert whole == pytest.approx(decoding, rel=0.03)


def test_without_times_a_turn_is_split_over_its_requests_and_nothing_is_lost():
    run = results(Truth(times=False))
    found = bill(run, "adaptive", 1.0, MONEY)
    assert found.source is Source.TOKENS
    ms = sum(each.off.ms * each.off.requests for each in found.classes)
    assert ms == pytest.approx(1e3 * sum(t.seconds for t in run.turns if t.arm == "off"), rel=0.01)


def test_one_arm_without_times_is_enough_to_split_all_by_tokens():
    run = results()
    mixed = replace(run, requests=tuple(replace(r, times=None) if r.arm == "off" else r for r in run.requests))
    assert bill(mixed, "adaptive", 1.0, MONEY).source is Source.TOKENS


def test_capacity_is_by_what_meets_the_objectives():
    run = results()
    all_, few = bill(run, "adaptive", 1.0, MONEY), bill(run, "adaptive", 1.0, MONEY, Slo(tpot_ms=7.0))
    assert few.off.goodput_per_s == 0.0
    assert few.off.usd_per_request == float("inf")
    assert 0.0 < few.on.goodput_per_s < all_.on.goodput_per_s
    assert all_.on.usd_per_million_total < all_.on.usd_per_million_output


def test_failed_and_late_requests_meet_nothing():
    request = results().requests[0]
    assert met(request, Slo(ttft_ms=60.0))
    assert not met(request, Slo(ttft_ms=40.0))
    assert not met(replace(request, error="refused"), Slo())


def test_classes_without_requests_are_named_not_guessed():
    run = results()
    without = replace(run, requests=tuple(r for r in run.requests if r.request_class is not STORY))
    found = bill(without, "adaptive", 1.0, MONEY)
    assert found.unmeasured == (STORY,)
    assert sum(found.volume.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(("arm", "level"), [("off", 1.0), ("adaptive", 2.0)])
def test_nothing_to_compare_is_said(arm, level):
    with pytest.raises(ValueError):
        bill(results(), arm, level, MONEY)


def test_acceptance_by_hand():
    requests = [r for r in results().requests if r.arm == "adaptive" and r.request_class is EDIT]
    found = acceptance(requests)
    assert found.mal_step_weighted == pytest.approx(1 + 32 / 10)
    assert found.mal_request_mean == pytest.approx(found.mal_step_weighted)
    assert found.rate == pytest.approx(0.8)
    assert found.survival == pytest.approx((1.0, 1.0, 1.0, 0.2))
    assert found.conditional == pytest.approx((1.0, 1.0, 1.0, 0.2))
    assert acceptance([r for r in results().requests if r.arm == "off"]) is None
