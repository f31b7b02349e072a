"""A simulated engine asks its free drafters no more often than ours does."""

from __future__ import annotations

from itertools import repeat

import pytest

from decodeloop.evaluation.acceptance import BySurvival
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.roofline import StraightLines
from decodeloop.evaluation.simulate import Fleet, simulate_closed
from decodeloop.evaluation.workload import Arrival
from decodeloop.policy import PolicySettings
from decodeloop.policy.fixed import FixedPolicy, verify_all
from decodeloop.types import Decision, RequestClass

COST = StraightLines(step=6.0, token=0.4, context=0.0)
CHAT = RequestClass.GENERAL_CHAT
LOAD = 8


class Watching(FixedPolicy):
    """Verifies all that it is offered, or nothing; notes whose drafters had spoken in each step."""

    def __init__(self, *, learns, heeds):
        super().__init__(PolicySettings(3, 3))
        self.learns, self.heeds, self.spoken = learns, heeds, []

    def plan(self, load, requests):
        self.spoken.append([bool(request.proposals["ngram"]) for request in requests])
        return super().plan(load, requests)

    def allocate(self, plan, scores):
        found = verify_all(plan, scores)
        return found if self.heeds else Decision((0,) * len(plan.draft_lens), found.reasons)


def spoken(**behaviour):
    """The share of rows whose drafters had spoken, in the first steps and in the last."""
    policy = Watching(**behaviour)
    fleet = Fleet(
        replicas=1,
        cost=COST,
        rule=lambda: PolicyRule(policy, COST, max_draft_len=3),
        acceptance=BySurvival({CHAT: (0.9, 0.8, 0.7)}),
    )
    request = Arrival(0.0, 20, 100, CHAT)
    simulate_closed(fleet, [request] * LOAD, seconds=10.0, following=repeat(request))
    shares = [sum(step) / len(step) for step in policy.spoken]
    return shares[1], sum(shares[-200:]) / 200


def test_drafters_whose_drafts_are_never_verified_are_left_to_rest():
    first, last = spoken(learns=True, heeds=False)
    assert first == 1.0
    assert last < 0.1


@pytest.mark.parametrize("behaviour", [{"learns": True, "heeds": True}, {"learns": False, "heeds": False}])
def test_drafters_that_pay_are_always_asked_and_so_are_those_of_policies_that_have_no_ear_for_them(behaviour):
    first, last = spoken(**behaviour)
    assert first == 1.0
    assert last > 0.95  # nobody has anything to say before the last token
