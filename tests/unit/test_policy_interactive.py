"""Whose tokens weigh how much, by the pace of their answers so far and by what became of their class's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from decodeloop.policy import PolicySettings
from decodeloop.policy.aim import Market
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.policy.interactive import LATE, LEARNED, Z_MOST, Interactive, InteractivePolicy, V
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.types import DecodeRequest, Knowledge, Load, Reason, RequestClass, Scores, Slo, StepRecord, StepRow

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
TPOT_MS = 10.0


def asking(name, request_class=EDIT, tpot_ms=TPOT_MS, **changes):
    said = {"ngram": (0.9, 0.8, 0.7)}
    return DecodeRequest(
        name, "t", request_class, 100, 8, None, ("ngram",), slo=Slo(tpot_ms=tpot_ms), proposals=said, **changes
    )


def took(ms, *names, accepted=0, request_class=EDIT):
    rows = tuple(
        StepRow(
            request_id=name,
            tenant="t",
            request_class=request_class,
            reason=Reason.INTERACTIVE,
            verify_len=accepted,
            accepted=accepted,
            emitted=accepted + 1,
        )
        for name in names
    )
    load = Load(len(rows), 0, 100 * len(rows), 1.0)
    return StepRecord(
        step=0, at_s=0.0, load=load, draft_ms=0, verify_ms=ms, sample_ms=0, overhead_ms=0, step_ms=ms, rows=rows
    )


def weights(aim, *requests):
    aim.meet(requests)
    return aim.terms(requests, Market(lambda _: 1e9, 0.1, mixed=False)).weights - V


def answer(aim, name, step_ms, steps, request_class=EDIT):
    """A whole answer, alone."""
    for _ in range(steps):
        aim.meet([asking(name, request_class)])
        aim.follow(took(step_ms, name, request_class=request_class))
    aim.meet([])


def test_who_is_behind_weighs_by_how_much_and_who_is_ahead_not_until_that_is_used_up():
    aim = Interactive(AdaptiveOptions())
    requests = asking("late"), asking("early"), asking("whenever", tpot_ms=None)
    assert weights(aim, *requests).tolist() == [0.0, 0.0, 0.0]
    aim.follow(took(3 * TPOT_MS, "late"))
    aim.follow(took(3 * TPOT_MS, "early", accepted=4))
    assert weights(aim, *requests) == pytest.approx([2.0, 0.0, 0.0])
    aim.follow(took(3 * TPOT_MS, "late", "early", "whenever"))
    assert weights(aim, *requests) == pytest.approx([4.0, 0.0, 0.0])
    aim.follow(took(3 * TPOT_MS, "early"))
    assert weights(aim, *requests) == pytest.approx([4.0, 2.0, 0.0])


def test_the_time_between_steps_counts():
    aim = Interactive(AdaptiveOptions())
    weights(aim, asking("r"))
    for i in range(3):
        aim.follow(replace(took(TPOT_MS, "r"), at_s=i * 1.5e-3 * TPOT_MS))
    assert weights(aim, asking("r")) == pytest.approx([1.0])


def test_answers_of_a_class_that_ends_late_are_taken_to_be_behind_from_their_first_token_on():
    aim = Interactive(AdaptiveOptions())
    for i in range(3):
        answer(aim, f"late {i}", 1.1 * TPOT_MS, 5)
    learned = 3 * LEARNED * (1.0 - LATE)
    assert weights(aim, asking("new"), asking("other", CHAT)) == pytest.approx([learned, 0.0])
    for i in range(200):
        answer(aim, f"early {i}", 0.9 * TPOT_MS, 5)
    assert weights(aim, asking("newer")) == pytest.approx([0.0])


def test_who_was_late_with_all_the_weight_there_is_teaches_nothing():
    aim = Interactive(AdaptiveOptions(frontier=1.0))
    answer(aim, "hopeless", 10 * TPOT_MS, 50)
    assert aim.describe()["presumed_behind"] == []
    assert weights(aim, asking("new")) == pytest.approx([0.0])


def test_what_a_class_is_presumed_to_be_behind_is_bounded_by_the_dial():
    for frontier, most in ((0.0, 0.0), (0.5, 16 * V), (1.0, Z_MOST)):
        aim = Interactive(AdaptiveOptions(frontier=frontier))
        for i in range(100):
            answer(aim, f"{i}", 1.01 * TPOT_MS, 2)
        assert weights(aim, asking("new"))[0] <= most


def test_drafts_verified_for_the_sake_of_an_objective_are_said_to_have_been_worth_asking_for():
    """By tokens a millisecond they are a loss: drafters would be left to rest."""
    samples = [
        CostSample(n, 100 * s, s, 3.0 + n + 4.0 * max(n - 8, 0)) for s in (1, 2, 4, 8) for n in range(s, 9 * s + 1, s)
    ]
    policy = InteractivePolicy(PolicySettings(8, options={"frontier": 1.0}), CostSurface(samples))
    requests = [asking("late"), *(asking(f"{i}", CHAT, None) for i in range(7))]
    load = Load(8, 0, 800, 1.0)
    gains = []
    for _ in range(30):
        plan = policy.plan(load, requests)
        said = [np.array([0.9, 0.8, 0.7])[:length] for length in plan.draft_lens]
        decision = policy.allocate(plan, Scores(tuple(said), Knowledge.PREFIX))
        gains.append((decision.verify_lens[0], decision.gain_ms))
        policy.observe(took(3 * TPOT_MS, "late"))
    verified = [gain for length, gain in gains if length]
    assert verified
    assert all(gain > 0.0 for gain in verified)
