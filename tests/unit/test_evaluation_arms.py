"""Blocks in mirrored order, runs that go on, and what makes a run invalid."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decodeloop.evaluation.arms import Measurement, Run, faults, measure, order
from decodeloop.evaluation.statistics import paired_ratio


def turn(tokens=100, seconds=1.0, **fields):
    return Measurement(tokens=tokens, seconds=seconds, requests=10, **fields)


def test_turns_are_mirrored_and_take_turns_at_beginning():
    assert order(["a", "b"], 0) == ["a", "b", "b", "a"]
    assert order(["a", "b"], 1) == ["b", "a", "a", "b"]
    assert order(["a", "b", "c"], 1) == ["b", "c", "a", "a", "c", "b"]


def test_a_drifting_machine_is_the_same_for_both():
    """Each turn takes a tenth longer than the one before; both arms do the same work."""
    clock = iter(range(10**6))

    def serve(block):
        return turn(seconds=1.0 + 0.1 * next(clock))

    run = measure({"a": serve, "b": serve}, 8)
    assert paired_ratio(run.rates("a"), run.rates("b")).ratio == pytest.approx(1.0, abs=1e-9)


def test_a_run_goes_on_where_it_was_interrupted():
    served, saved = [], []

    def arm(name, fails_at=None):
        def serve(block):
            if block == fails_at:
                raise KeyboardInterrupt
            served.append((name, block))
            return turn()

        return serve

    with pytest.raises(KeyboardInterrupt):
        measure({"a": arm("a"), "b": arm("b", 2)}, 4, save=lambda run: saved.append(json.dumps(run.to_json())))
    served.clear()
    run = measure({"a": arm("a"), "b": arm("b")}, 4, run=Run.from_json(json.loads(saved[-1])))
    assert {block for _, block in served} == {2, 3}
    assert all(len(run.turns[name][block]) == 2 for name in "ab" for block in range(4))
    assert len(run.rates("a")) == 4


def test_an_arm_alone_is_no_comparison():
    with pytest.raises(ValueError, match="two arms"):
        measure({"a": lambda block: turn()}, 4)


@pytest.mark.parametrize("bad", [{"a": {"x": []}}, {"a": {"0": [{"tokens": 1}]}}, {"a": 3}])
def test_other_json_is_no_run(bad):
    with pytest.raises(ValueError, match="not a run"):
        Run.from_json(bad)


def run_of(**arms):
    run = Run()
    for name, turns in arms.items():
        for block, one in enumerate(turns):
            run.add(name, block, one)
    return run


def lens(mean, seed):
    return tuple(int(n) for n in np.random.default_rng(seed).poisson(mean, 200))


def test_a_sound_run_has_no_faults():
    fine = [turn(ttft_ms=(100.0,) * 50, client_lag_ms=(1.0,) * 50, output_tokens=lens(60, i)) for i in range(4)]
    assert faults(run_of(a=fine, b=fine)) == []
    assert faults(run_of(a=[turn()], b=[turn()])) == []


def test_faults_are_named():
    late = [turn(ttft_ms=(100.0,) * 50, client_lag_ms=(9.0,) * 50)]
    assert "client was late" in faults(run_of(a=late, b=[turn()]))[0]
    failing = [Measurement(tokens=1, seconds=1.0, requests=500, errors=40)]
    fine = [Measurement(tokens=1, seconds=1.0, requests=500, errors=2)]
    assert faults(run_of(a=failing, b=fine)) == ["a and b: their error rates differ"]
    short, long = [turn(output_tokens=lens(50, 0))], [turn(output_tokens=lens(60, 1))]
    assert faults(run_of(a=short, b=long)) == ["a and b: their output lengths differ"]


def test_equal_length_distributions_seldom_look_different():
    pairs = [[turn(output_tokens=lens(60, 2 * i + arm)) for arm in range(2)] for i in range(100)]
    assert sum(bool(faults(run_of(a=[one], b=[other]))) for one, other in pairs) <= 3
