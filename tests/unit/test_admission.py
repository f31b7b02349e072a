from dataclasses import replace

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.speculation import Draft, DraftBlock
from decodeloop.speculation.admission import refuse_anticipation, refuse_inadmissible
from decodeloop.speculation.verifiers import verifiers
from decodeloop.types import Decision, Knowledge, Plan, Reason

Q = np.array([0.5, 0.5])
SAMPLED = Draft((0, 1), (Q, Q), (0.8, 0.5), None, "draft_model")
KNOWING = replace(SAMPLED, knowledge=Knowledge.SELF)
POINT = Draft((0, 1), None, (0.8, 0.5), None, "ngram", Knowledge.SELF)
STRICT = ["block", "rejection"]


def admit(name, *drafts):
    refuse_inadmissible(verifiers.load(name)(), drafts, DraftBlock(drafts).scores())


def decide(name, knowledge, *drafts):
    decision = Decision((1,) * len(drafts), (Reason.FIXED,) * len(drafts), knowledge=knowledge)
    refuse_anticipation(verifiers.load(name)(), drafts, decision)


@pytest.mark.parametrize("name", verifiers.names())
def test_scores_from_the_prefix_and_point_masses_are_admitted_everywhere(name):
    admit(name)
    admit(name, Draft())
    admit(name, SAMPLED, POINT)
    admit(name, POINT)
    admit(name, replace(KNOWING, tokens=(), q=(), confidence=()), SAMPLED)


@pytest.mark.parametrize("name", STRICT)
def test_scores_that_know_their_token_are_refused_for_sampled_drafts(name):
    with pytest.raises(ValueError, match=r"admits scores that know PREFIX .* those of draft_model know SELF"):
        admit(name, SAMPLED, KNOWING)


@pytest.mark.parametrize("name", STRICT)
def test_scores_that_rise_along_a_sampled_draft_are_refused(name):
    with pytest.raises(ValueError, match=r"never increase .* draft_model do: take their running minimum"):
        admit(name, replace(SAMPLED, confidence=(0.5, 0.8)))
    admit(name, replace(POINT, confidence=(0.5, 0.8)))


def test_coupled_admits_everything():
    admit("coupled", KNOWING, replace(SAMPLED, confidence=(0.5, 0.8)))
    decide("coupled", Knowledge.SELF, SAMPLED)


@pytest.mark.parametrize("name", STRICT)
def test_lengths_that_weigh_later_scores_are_refused_for_sampled_drafts(name):
    with pytest.raises(ValueError, match="policy's know SELF of those of draft_model"):
        decide(name, Knowledge.SELF, POINT, SAMPLED)
    decide(name, Knowledge.SELF, POINT)
    decide(name, Knowledge.PREFIX, SAMPLED)


def test_a_decision_vouches_for_nothing_by_itself():
    assert Decision((1,), (Reason.FIXED,)).knowledge is Knowledge.SELF


@pytest.mark.parametrize("name", ["fixed", "off"])
def test_policies_without_scores_are_admissible(name):
    policy = policies.load(name)(PolicySettings(), None)
    decision = policy.allocate(Plan((2,), ("draft_model",), (Reason.FIXED,)), DraftBlock((SAMPLED,)).scores())
    assert decision.knowledge is Knowledge.PREFIX
