"""What `generate --explain` says of a policy's beliefs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "replay"))

from decodeloop.cli.explain import lines
from decodeloop.policy import PolicySettings, policies
from decodeloop.types import RequestClass
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT


def described(name, steps=120, cost=None):
    policy = policies.load(name)(PolicySettings(K), cost)
    drafters = {"ngram": SimulatedDrafter({EDIT: 3.0, CHAT: -1.0})}
    return SimulatedEngine(policy, drafters, [Client(EDIT), Client(CHAT)]).run(steps).policy.describe()


@pytest.mark.parametrize("name", ["adaptive", "throughput", "interactive"])
def test_every_belief_has_its_line_with_its_numbers(name):
    beliefs = described(name, cost=measured_surface())
    text = "\n".join(lines(beliefs))
    assert f"policy {name}, at most {K} drafted" in text
    assert "cost surface, ms of a step by tokens: 1: " in text
    survival = next(e["survival"] for e in beliefs["survival"] if e["class"] == "code_edit")
    assert f"survival code_edit ngram: {survival[0]:.2f} {survival[1]:.2f}" in text
    for start in (
        "calibration code_edit",
        "cliff code_edit",
        "cliff general_chat",
        "frontier ",
        "drift: ",
        "reasons: ",
    ):
        assert f"\n{start}" in text
    assert f"at {beliefs['aim']['point']['tokens_per_s']} tokens/s" in text
    assert beliefs["aim"]["point"]["tokens_per_s"] > beliefs["aim"]["point"]["tokens_per_s_per_user"] > 0


@pytest.mark.parametrize("name", policies.names())
def test_any_policy_can_be_explained_from_the_first_step(name):
    for steps in (0, 3):
        assert f"policy {name}" in "\n".join(lines(described(name, steps)))


def test_a_cost_that_is_not_measured_yet_says_so():
    assert any("not measured yet (3 steps seen)" in line for line in lines(described("adaptive", 3)))
