"""Whose tokens weigh how much, by the pace of their answers so far and by what became of their class's."""

from __future__ import annotations

import math

import numpy as np
import pytest

from decodeloop.policy import PolicySettings
from decodeloop.policy.aim import Market
from decodeloop.policy.attainment import MOST, STEP
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.policy.interactive import LEAD, Interactive, InteractivePolicy, V
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.types import DecodeRequest, Knowledge, Load, Reason, RequestClass, Scores, Slo, StepRecord, StepRow

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
TPOT_MS = 10.0


def asking(name, request_class=EDIT, tpot_ms=TPOT_MS, **changes):
    said = {"ngram": (0.9, 0.8, 0.7)}
    return DecodeRequest(
        name, "t", request_class, 100, 8, None, ("ngram",), slo=Slo(tpot_ms=tpot_ms), proposals=said, **changes
    )


def took(ms, *names, accepted=0, request_class=EDIT, at_ms=0.0):
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
        step=0, at_s=at_ms / 1e3, load=load, draft_ms=0, verify_ms=ms, sample_ms=0, overhead_ms=0, step_ms=ms, rows=rows
    )


def weights(aim, *requests):
    aim.meet(requests)
    found = aim.terms(requests, Market(lambda _: 1e9, 0.1, mixed=False)).weights
    return np.zeros(len(requests)) if found is None else found - V


class Clock:
    """Steps that follow each other at once."""

    def __init__(self, aim):
        self.aim, self.now_ms = aim, 0.0

    def step(self, ms, *names, **changes):
        self.aim.follow(took(ms, *names, at_ms=self.now_ms, **changes))
        self.now_ms += ms

    def answer(self, name, step_ms, steps, request_class=EDIT):
        """A whole answer, alone."""
        for _ in range(steps):
            self.aim.meet([asking(name, request_class)])
            self.step(step_ms, name, request_class=request_class)
        self.aim.meet([])


def test_who_is_behind_weighs_by_how_much_and_who_is_ahead_not_until_that_is_used_up():
    aim = Interactive(AdaptiveOptions())
    clock = Clock(aim)
    requests = asking("late"), asking("early", tpot_ms=2 * TPOT_MS), asking("whenever", tpot_ms=None)
    assert weights(aim, *requests).tolist() == [0.0, 0.0, 0.0]
    clock.step(3 * TPOT_MS, "late", "early", "whenever")
    assert weights(aim, *requests) == pytest.approx([2.0, 0.5, 0.0])
    clock.step(TPOT_MS, "late", "early", "whenever", accepted=2)
    assert weights(aim, *requests) == pytest.approx([0.0, 0.0, 0.0])  # two of three tokens beyond need
    clock.step(TPOT_MS, "late", "early", "whenever")
    assert weights(aim, *requests) == pytest.approx([0.0, 0.0, 0.0])
    clock.step(6 * TPOT_MS, "late", "early", "whenever")
    assert weights(aim, *requests) == pytest.approx([5.0, 0.0, 0.0])


def test_all_time_counts_once_between_steps_and_in_steps_that_an_answer_was_not_part_of():
    aim = Interactive(AdaptiveOptions())
    requests = asking("r"), asking("other", CHAT, None)
    for name, at_ms in (("r", 0.0), ("r", 1.5 * TPOT_MS), ("other", 3.0 * TPOT_MS), ("r", 4.5 * TPOT_MS)):
        weights(aim, *requests)
        aim.follow(took(TPOT_MS, name, at_ms=at_ms))
    assert weights(aim, *requests) == pytest.approx([5.5 - 3.0, 0.0])


def test_the_clock_of_an_answer_is_a_clients_whatever_pauses_steps_and_learning_vary_by():
    """What a step's record books twice (learning, after one step and in the next) or clips would add up."""
    rng = np.random.default_rng(0)
    aim, now_ms = Interactive(AdaptiveOptions(frontier=1.0)), 5.0
    aim.follow(took(now_ms, "prompt"))
    first_ms = now_ms
    for pause_ms, carried_ms, ms in zip(*rng.exponential(3.0, (3, 200)), strict=True):
        now_ms += pause_ms + carried_ms
        weights(aim, asking("r", tpot_ms=8.0))
        aim.follow(took(ms + carried_ms, "r", at_ms=now_ms))  # that time is before its start
        now_ms += ms
    lag = (now_ms - first_ms) / 8.0 - 200
    assert weights(aim, asking("r", tpot_ms=8.0)) == pytest.approx([lag], abs=1.0)


def test_answers_of_a_class_that_ends_late_are_taken_to_be_behind_from_their_first_token_on():
    aim = Interactive(AdaptiveOptions(attainment=0.9))
    clock = Clock(aim)
    for i in range(3):
        clock.answer(f"late {i}", 1.1 * TPOT_MS, 5)
    learned = 3 * STEP * 0.9
    assert weights(aim, asking("new"), asking("other", CHAT)) == pytest.approx([learned, 0.0])
    for i in range(27):
        clock.answer(f"early {i}", 0.9 * TPOT_MS, 5)
    assert weights(aim, asking("newer")) == pytest.approx([0.0], abs=STEP)
    assert aim.describe()["presumed_behind"][0]["in_time"] == pytest.approx(0.9, abs=0.04)


def test_who_is_ahead_by_the_lead_weighs_nothing_however_late_its_class_is_and_less_the_more_it_is_ahead():
    aim = Interactive(AdaptiveOptions(attainment=0.9))
    clock = Clock(aim)
    for i in range(8):
        clock.answer(f"late {i}", 1.1 * TPOT_MS, 5)
    presumed = 8 * STEP * 0.9
    assert presumed > 2 * LEAD
    found = []
    for _ in range(math.ceil(LEAD) + 1):
        found.append(weights(aim, asking("ahead"))[0])
        clock.step(TPOT_MS, "ahead", accepted=1)
    assert found == pytest.approx([presumed * max(1.0 - ahead / LEAD, 0.0) for ahead in range(len(found))])


def test_a_class_that_is_in_time_anyway_may_be_behind_before_it_weighs():
    aim = Interactive(AdaptiveOptions(attainment=0.5))
    clock = Clock(aim)
    for i in range(4):
        clock.answer(f"early {i}", 0.9 * TPOT_MS, 5)
    aim.meet([asking("late")])
    clock.step(9 * TPOT_MS, "late")
    assert weights(aim, asking("late")) == pytest.approx([8.0 - 4 * STEP / 2])


def test_what_a_class_is_presumed_to_be_behind_is_bounded_by_the_dial():
    for frontier, most in ((0.0, 0.0), (0.1, 16 * V / 9), (1.0, MOST)):
        aim = Interactive(AdaptiveOptions(frontier=frontier))
        clock = Clock(aim)
        for i in range(100):
            clock.answer(f"{i}", 1.01 * TPOT_MS, 2)
        assert weights(aim, asking("new"))[0] == pytest.approx(most)


def test_who_is_behind_with_all_the_weight_there_is_counts_as_infeasible():
    aim = Interactive(AdaptiveOptions(frontier=0.1))
    aim.meet([asking("r")])
    assert aim.describe()["infeasible"] == 0
    Clock(aim).step(10 * TPOT_MS, "r")
    assert aim.describe()["infeasible"] == 1


def test_drafts_verified_for_the_sake_of_an_objective_are_said_to_have_been_worth_asking_for():
    """By tokens a millisecond they are a loss: drafters would be left to rest."""
    samples = [
        CostSample(n, 100 * s, s, 3.0 + n + 4.0 * max(n - 8, 0)) for s in (1, 2, 4, 8) for n in range(s, 9 * s + 1, s)
    ]
    policy = InteractivePolicy(PolicySettings(8, options={"frontier": 1.0}), CostSurface(samples))
    requests = [asking("late"), *(asking(f"{i}", CHAT, None) for i in range(7))]
    load = Load(8, 0, 800, 1.0)
    gains = []
    for i in range(30):
        plan = policy.plan(load, requests)
        said = [np.array([0.9, 0.8, 0.7])[:length] for length in plan.draft_lens]
        decision = policy.allocate(plan, Scores(tuple(said), Knowledge.PREFIX))
        gains.append((decision.verify_lens[0], decision.gain_ms))
        policy.observe(took(3 * TPOT_MS, "late", at_ms=3 * i * TPOT_MS))
    verified = [gain for length, gain in gains if length]
    assert verified
    assert all(gain > 0.0 for gain in verified)


def test_choices_of_a_request_share_an_answer_that_is_late_by_what_they_are():
    aim = Interactive(AdaptiveOptions())
    aim.meet([asking("r"), asking("r")])
    for step in range(20):
        aim.follow(took(2 * TPOT_MS, "r", "r", at_ms=2 * TPOT_MS * step))
    assert aim.describe()["infeasible"] == 1
