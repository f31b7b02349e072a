"""What a policy decides to verify of two sampled drafts, asked as the engine asks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from decodeloop.evaluation.lossless.joint import LENGTH
from decodeloop.policy import Policy, PolicySettings, policies
from decodeloop.speculation import Draft, DraftBlock, Verifier
from decodeloop.speculation.admission import refuse_anticipation, refuse_inadmissible
from decodeloop.types import DecodeRequest, Load, RequestClass


class Staircase:
    """Verified tokens come in pairs, which is what tempts a policy to weigh a later token for an earlier one."""

    def step_ms(self, tokens: int, context: int, sequences: int) -> float:
        return 1.0 + 0.4 * -(-tokens // 2)

    def draft_ms(self, drafter: str, depth: int, sequences: int) -> float:
        return 0.01 * depth * sequences


def request(name: str) -> DecodeRequest:
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


def open_policy(name: str, verifier: Verifier) -> Policy:
    settings = PolicySettings(LENGTH, LENGTH, verifier_admits=verifier.admits)
    return policies.load(name)(settings, Staircase())


def scored(draft: Draft) -> Draft:
    """With the survival that its rows promise, known before each token."""
    confidence = tuple(np.cumprod([float(row.max()) for row in draft.q or ()]).tolist())
    return replace(draft, confidence=confidence, drafter="draft_model")


def decided(drafts: Sequence[Draft], fresh: Callable[[], Policy], verifier: Verifier) -> Sequence[Draft]:
    """Plan, score, check, allocate, check, cut. Raises ValueError where the verifier refuses what the policy knows.

    fresh: a policy without a past, for every outcome that is enumerated.
    """
    policy = fresh()
    plan = policy.plan(
        Load(running=2, waiting=0, context_tokens=200, kv_free_fraction=1.0), [request("a"), request("b")]
    )
    planned = [scored(draft.cut(length)) for draft, length in zip(drafts, plan.draft_lens, strict=True)]
    scores = DraftBlock(tuple(planned)).scores()
    refuse_inadmissible(verifier, planned, scores)
    decision = policy.allocate(plan, scores)
    refuse_anticipation(verifier, planned, decision)
    return [draft.cut(length) for draft, length in zip(planned, decision.verify_lens, strict=True)]
