"""Every policy with every verifier: what it decides to verify, if it is admitted, leaves the law of two texts alone."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.speculation import DraftBlock
from decodeloop.speculation.admission import refuse_anticipation, refuse_inadmissible
from decodeloop.speculation.verifiers import verifiers
from decodeloop.testing import EXACT, random_table
from decodeloop.types import DecodeRequest, Load, RequestClass
from joint import LENGTH, joint_distance


class Staircase:
    """Verified tokens come in pairs, which is what tempts a policy to weigh a later token for an earlier one."""

    def step_ms(self, tokens, context, sequences):
        return 1.0 + 0.4 * -(-tokens // 2)

    def draft_ms(self, drafter, depth, sequences):
        return 0.01 * depth * sequences


def request(name):
    return DecodeRequest(
        request_id=name,
        tenant="acme",
        request_class=RequestClass.CODE_EDIT,
        context_tokens=100,
        max_draft_len=LENGTH,
        cap=None,
        drafters=("draft_model",),
        temperature=1.0,
    )


def decided(drafts, name, verifier):
    """As the engine does it: plan, score, check, allocate, check, cut."""
    settings = PolicySettings(LENGTH, LENGTH, options={"verifier_admits": verifier.admits})
    policy = policies.load(name)(settings, Staircase())
    plan = policy.plan(
        Load(running=2, waiting=0, context_tokens=200, kv_free_fraction=1.0), [request("a"), request("b")]
    )
    planned = [scored(draft.cut(length)) for draft, length in zip(drafts, plan.draft_lens, strict=True)]
    scores = DraftBlock(tuple(planned)).scores()
    refuse_inadmissible(verifier, planned, scores)
    decision = policy.allocate(plan, scores)
    refuse_anticipation(verifier, planned, decision)
    return [draft.cut(length) for draft, length in zip(planned, decision.verify_lens, strict=True)]


def scored(draft):
    confidence = tuple(np.cumprod([row.max() for row in draft.q]).tolist())
    return replace(draft, confidence=confidence, drafter="draft_model")


@pytest.mark.parametrize("verifier", verifiers.names())
@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_with_every_verifier(policy, verifier):
    judge = verifiers.load(verifier)()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        targets, qs = ([random_table(rng, 2, LENGTH + 1) for _ in range(2)] for _ in range(2))
        assert joint_distance(judge, targets, qs, partial(decided, name=policy, verifier=judge)) < EXACT
