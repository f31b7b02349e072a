"""The circuit breaker, step by step and under any sequence of ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from decodeloop.gateway.breaker import Breaker, BreakerSettings

SETTINGS = BreakerSettings(faults_in_a_row=3, window=10, open_s=2.0, most_open_s=8.0)


def fail(breaker: Breaker, now_s: float, times: int = 1) -> None:
    for _ in range(times):
        breaker.begin()
        breaker.failed(now_s)


def test_faults_in_a_row_open_it_and_one_trial_closes_it():
    breaker = Breaker(SETTINGS)
    fail(breaker, 0.0, 2)
    assert breaker.allows(0.0)
    fail(breaker, 0.0)
    assert not breaker.allows(1.9)
    assert breaker.allows(2.0)
    breaker.begin()
    assert not breaker.allows(2.0), "one trial at a time"
    breaker.succeeded()
    assert breaker.allows(2.0)
    assert breaker.state == "closed"


def test_each_failed_trial_doubles_the_wait_up_to_a_bound():
    breaker, now_s = Breaker(SETTINGS), 0.0
    fail(breaker, now_s, 3)
    for wait_s in (2.0, 4.0, 8.0, 8.0):
        assert not breaker.allows(now_s + wait_s - 0.1)
        now_s += wait_s
        assert breaker.allows(now_s)
        fail(breaker, now_s)


def test_half_of_the_answers_faults():
    breaker = Breaker(SETTINGS)
    for _ in range(5):
        fail(breaker, 0.0)
        assert breaker.allows(0.0)
        breaker.begin()
        breaker.succeeded()
    fail(breaker, 0.0)
    assert not breaker.allows(0.0)


def test_a_full_server_is_not_a_broken_one():
    breaker = Breaker(SETTINGS)
    for now_s in range(20):
        breaker.begin()
        breaker.full(float(now_s), 0.5)
        assert not breaker.allows(now_s + 0.4)
        assert breaker.allows(now_s + 0.5)
        assert breaker.state == "closed"


@given(st.lists(st.sampled_from(["succeeded", "failed", "full", "released"]), max_size=60))
def test_a_trial_is_always_released(ends):
    """Whatever happened, some time later a request is allowed."""
    breaker, now_s = Breaker(SETTINGS), 0.0
    for end in ends:
        now_s += 100.0
        assert breaker.allows(now_s)
        breaker.begin()
        arguments = {"failed": (now_s,), "full": (now_s, None)}.get(end, ())
        getattr(breaker, end)(*arguments)
