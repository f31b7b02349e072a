"""How an engine comes to its policy."""

import pytest

from decodeloop.engine.build import open_policy
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.verifiers import verifiers


def never():
    raise AssertionError("measured for settings that can't hold")


def test_options_that_cant_hold_are_refused_before_costs_are_measured():
    settings = EngineSettings(policy="adaptive", policy_options={"interference": 2.0})
    with pytest.raises(ValueError, match="interference"):
        open_policy(settings, verifiers.load("coupled")(), never)


def test_what_learns_nothing_measures_nothing():
    assert open_policy(EngineSettings(policy="off"), verifiers.load("coupled")(), never).learns is False
