"""Routing decisions as data."""

from __future__ import annotations

import pytest

from decodeloop.policy.routing import gain, route
from decodeloop.types import Load, RequestClass, Speculation, SpeculationMode
from decodeloop.types.routing import Pool, Regime, RouteReason, RouteRequest

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
CLIFF = {EDIT: [(1, 3.0), (8, 1.5), (32, 0.8)], CHAT: [(1, 1.2), (8, 0.9), (32, 0.5)]}


def pool(name, regime, running=0, waiting=0, gains=CLIFF):
    return Pool(name=name, regime=regime, load=Load(running, waiting, 0, 1.0), gains=gains)


def pools(running=0, waiting=0):
    return [pool("plain", Regime.PLAIN), pool("spec", Regime.FIXED, running, waiting)]


def ask(request_class=EDIT, **fields):
    return RouteRequest(request_class=request_class, **fields)


def test_a_class_goes_where_it_gains_at_the_load_of_the_moment():
    assert route(ask(), pools()).pool == "spec"
    assert route(ask(), pools()).reason is RouteReason.GAIN
    assert route(ask(CHAT), pools(running=8)).pool == "plain"
    assert route(ask(), pools(running=31)).reason is RouteReason.NO_GAIN


def test_the_cliff_is_this_deployments_own():
    late = pool("late", Regime.FIXED, 31, gains={EDIT: [(1, 3.0), (64, 1.5)]})
    assert route(ask(), [pool("plain", Regime.PLAIN), late]).pool == "late"


def test_an_adaptive_pool_never_does_worse_than_plain():
    adaptive = pool("adaptive", Regime.ADAPTIVE, 100)
    assert gain(ask(), adaptive) == 1.0
    assert gain(ask(), pool("fixed", Regime.FIXED, 100)) == pytest.approx(0.8)


def test_entropy_takes_from_a_gain():
    assert 1.0 < gain(ask(entropy=3.0), pools()[1]) < gain(ask(), pools()[1])
    barely = [pool("plain", Regime.PLAIN), pool("spec", Regime.FIXED, gains={EDIT: [(1, 1.03)]})]
    assert route(ask(), barely).reason is RouteReason.GAIN
    assert route(ask(entropy=9.0), barely).reason is not RouteReason.GAIN


def test_a_queue_counts():
    assert route(ask(), pools(running=2, waiting=20)).pool == "plain"


def test_overrides_only_by_grant():
    named = route(ask(pool="plain", may_choose=True), pools())
    assert (named.pool, named.reason, named.denied) == ("plain", RouteReason.OVERRIDE, False)
    refused = route(ask(pool="plain"), pools())
    assert (refused.pool, refused.denied) == ("spec", True)
    assert route(ask(pool="elsewhere", may_choose=True), pools()).pool == "spec"


def test_the_callers_wish_about_speculation_comes_before_gains():
    off, force = (Speculation(mode) for mode in (SpeculationMode.OFF, SpeculationMode.FORCE))
    assert route(ask(speculation=off), pools()).pool == "plain"
    assert route(ask(CHAT, speculation=force), pools(running=8)).pool == "spec"
    assert route(ask(speculation=off), pools()).reason is RouteReason.USER


def test_the_only_pool_it_is_and_none_is_an_error():
    assert route(ask(CHAT), pools(running=31)[1:]).reason is RouteReason.ONLY
    with pytest.raises(ValueError, match="no pool"):
        route(ask(), [])


def test_unmeasured_pools_promise_nothing():
    assert route(ask(), [pool("plain", Regime.PLAIN), pool("new", Regime.FIXED, gains={})]).scores == {
        "plain": 1.0,
        "new": 1.0,
    }
