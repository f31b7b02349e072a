"""What each turn serves: alike for every arm, fresh while there is enough, on the same clock."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from decodeloop.evaluation.bench import Served, same_texts
from decodeloop.evaluation.plan import LoadKind
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from measured import plan, results, served

SUITE = mini_suite(10)  # 80 requests


def of(workload=SUITE, **changes):
    fields = {"workload": workload.facts(), "requests_per_turn": 4, "levels": (1.0, 4.0), "blocks": 3, **changes}
    return Served.of(plan(**fields), workload)


def keys(made):
    return list(made.plan.turns())


def test_arms_are_served_the_same_and_no_request_comes_twice():
    made = of()
    by_turn = {}
    for key in keys(made):
        by_turn.setdefault(key[:3], []).append([r.id for r in made.requests(key)])
    assert all(one == other for one, other in by_turn.values())
    seen = [id for ids, _ in by_turn.values() for id in ids]
    assert len(seen) == len(set(seen)) == 48
    assert made.fresh


def test_ramps_are_filled_with_what_is_measured_nowhere():
    made = of()
    measured = {r.id for key in keys(made) for r in made.requests(key)}
    filling = {r.id for key in keys(made) for r in islice(made.fillers(key), 60)}
    assert not filling & measured
    assert len(filling) == 32


def test_a_workload_that_is_too_small_says_so():
    assert not of(requests_per_turn=7).fresh
    exact = replace(SUITE, requests=SUITE.requests[:48])
    assert not of(exact).fresh  # nothing is left for the ramps
    assert of(exact, levels=(1.0,), blocks=6).fresh  # which there are none of


def test_the_cap_is_on_every_answer():
    made = of(max_tokens=20)
    assert all(r.params["max_tokens"] <= 20 for key in keys(made) for r in made.requests(key))
    assert all(r.params["max_tokens"] <= 20 for r in islice(made.fillers(keys(made)[0]), 20))


def test_poisson_arrivals_are_an_arms_and_its_rivals_alike():
    made = of(load=LoadKind.OPEN, arrivals="poisson", levels=(5.0,))
    there, _, _, back = keys(made)[:4]
    off, on = keys(made)[:2]
    assert made.arrivals(off) == made.arrivals(on)
    assert made.arrivals(there) != made.arrivals(back)
    assert made.arrivals(off) == sorted(made.arrivals(off))


def test_a_trace_keeps_its_order_and_gaps():
    requests = tuple(WorkRequest(id=str(i), prompt="x", arrival_s=i * i / 10) for i in range(12))
    trace = Workload(name="t", requests=requests)
    made = of(trace, load=LoadKind.OPEN, arrivals="trace", levels=(2.0,), blocks=1, requests_per_turn=6)
    first, back = keys(made)[0], keys(made)[-1]
    assert [r.id for r in made.requests(first)] == ["0", "1", "2", "3", "4", "5"]
    assert made.arrivals(first) == pytest.approx([0.0, 0.05, 0.2, 0.45, 0.8, 1.25])
    assert [r.id for r in made.requests(back)] == ["6", "7", "8", "9", "10", "11"]
    with pytest.raises(ValueError, match="no 20 requests with arrivals"):
        of(trace, arrivals="trace", levels=(1.0,), requests_per_turn=20)


def test_what_cant_be_served_is_refused():
    with pytest.raises(ValueError, match="another workload"):
        Served.of(plan(), SUITE)
    lengths = Workload(name="lengths", requests=(WorkRequest(id="a", prompt_tokens=4),))
    with pytest.raises(ValueError, match="fill them first"):
        of(lengths)


def test_texts_are_compared_request_by_request():
    def serve(level, block, place, arm):
        own = served(level, block, place, arm)
        changed = block == 1 and arm == "on"
        return [replace(r, text_hash="x" if changed and r.id == "a" else r.id) for r in own]

    assert same_texts(results(serve=serve), "on", "off") == (48 - 4, 48)
