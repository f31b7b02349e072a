"""Routing decisions as data."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from decodeloop.policy.routing import gain, route
from decodeloop.policy.routing_rules import route_by_rules
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


def test_gains_follow_acceptance_since_they_were_measured():
    def at(recent):
        spec = pool("spec", Regime.FIXED)
        return gain(ask(), replace(spec, acceptance={EDIT: (recent, 0.6)}))

    assert at(0.6) == pytest.approx(3.0)
    assert at(0.0) < at(0.3) < at(0.6) < at(0.9)


few = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault
loads = st.builds(Load, st.integers(0, 80), st.integers(0, 40), st.just(0), st.just(1.0))
curves = st.lists(st.floats(0.3, 4.0), min_size=3, max_size=3).map(lambda g: list(zip((1, 8, 32), g, strict=True)))
measured = st.fixed_dictionaries({}, optional=dict.fromkeys(RequestClass, curves))
shares = st.tuples(st.floats(0, 1), st.floats(0, 1))
some_pools = st.lists(
    st.tuples(st.sampled_from(Regime), loads, measured, st.dictionaries(st.sampled_from(RequestClass), shares)),
    min_size=1,
    max_size=4,
).map(
    lambda rows: [
        Pool(name=f"p{i}", regime=regime, load=load, gains=gains, acceptance=acceptance)
        for i, (regime, load, gains, acceptance) in enumerate(rows)
    ]
)
requests = st.builds(
    RouteRequest,
    request_class=st.sampled_from(RequestClass),
    speculation=st.builds(Speculation, st.sampled_from(SpeculationMode)),
    entropy=st.none() | st.floats(0, 10),
    temperature=st.none() | st.floats(0, 2),
    pool=st.none() | st.sampled_from(["p0", "p1", "elsewhere"]),
    may_choose=st.booleans(),
)


@few
@given(requests, some_pools)
def test_any_route_is_one_of_the_pools_and_says_what_each_was_worth(request, pools):
    for router in (route, route_by_rules):
        found = router(request, pools)
        assert found.pool in {pool.name for pool in pools}
        assert set(found.scores) == {pool.name for pool in pools}
        assert found.denied == (request.pool is not None and not request.may_choose)


@few
@given(requests, some_pools)
def test_without_a_grant_naming_a_pool_changes_nothing(request, pools):
    for router in (route, route_by_rules):
        named = router(replace(request, may_choose=False), pools)
        unnamed = router(replace(request, pool=None), pools)
        assert replace(named, denied=False) == unnamed


@few
@given(requests, some_pools)
def test_with_a_grant_it_decides(request, pools):
    for router in (route, route_by_rules):
        found = router(replace(request, pool="p0", may_choose=True), pools)
        assert (found.pool, found.reason) == ("p0", RouteReason.OVERRIDE)


@few
@given(requests, some_pools)
def test_left_alone_it_takes_the_fastest_pool_hence_never_a_slower_one_than_the_rules_do(request, pools):
    request = replace(request, pool=None, speculation=Speculation())
    found = route(request, pools)
    assert found.scores[found.pool] == max(found.scores.values())
    assert found.scores[found.pool] >= found.scores[route_by_rules(request, pools).pool]


@few
@given(requests, some_pools, st.floats(1.0, 3.0))
def test_a_pool_that_gains_more_is_not_left_for_it(request, pools, factor):
    """More gain, or better acceptance, for the chosen pool: it stays chosen."""
    request = replace(request, pool=None)
    found = route(request, pools)
    better = [
        replace(p, gains={c: [(n, g * factor) for n, g in curve] for c, curve in p.gains.items()})
        if p.name == found.pool
        else p
        for p in pools
    ]
    assert route(request, better).pool == found.pool
    luckier = [
        replace(p, acceptance={c: (1.0, then) for c, (_, then) in p.acceptance.items()}) if p.name == found.pool else p
        for p in pools
    ]
    assert route(request, luckier).pool == found.pool


@few
@given(requests, some_pools)
def test_an_adaptive_pool_is_never_worth_less_than_a_plain_one_as_busy(request, pools):
    for each in pools:
        assert gain(request, replace(each, regime=Regime.ADAPTIVE)) >= 1.0
        assert gain(request, replace(each, regime=Regime.PLAIN)) == 1.0


def test_the_rules_of_thumb():
    def chosen(request, **busy):
        return route_by_rules(request, pools(**busy)).pool

    creative = RequestClass.CREATIVE_WRITING
    assert chosen(ask(), running=31) == "spec"
    assert chosen(ask(), running=32) == "plain"
    assert chosen(ask(speculation=Speculation(SpeculationMode.OFF))) == "plain"
    assert chosen(ask(creative, temperature=0.9)) == "plain"
    assert chosen(ask(creative, temperature=0.8)) == "spec"
    low = [pools()[0], replace(pools()[1], acceptance={CHAT: (0.6, 0.9), EDIT: (0.1, 0.9)})]
    assert route_by_rules(ask(CHAT), low).pool == "plain"
    assert route_by_rules(ask(EDIT), low).pool == "spec"
