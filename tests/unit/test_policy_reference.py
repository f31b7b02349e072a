"""The rules of thumb, in their order; and where gains end, by what is believed."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.policy import PolicySettings
from decodeloop.policy.cliff import cliff
from decodeloop.policy.reference import ReferencePolicy
from decodeloop.types import (
    DecodeRequest,
    Load,
    Reason,
    RequestClass,
    Speculation,
    SpeculationMode,
    StepRecord,
    StepRow,
)


def decide(policy, *, running=1, **fields):
    defaults = {
        "request_id": "r",
        "tenant": "t",
        "request_class": RequestClass.GENERAL_CHAT,
        "context_tokens": 10,
        "max_draft_len": 12,
        "cap": None,
        "drafters": ("ngram",),
    }
    plan = policy.plan(Load(running, 0, 10, 1.0), [DecodeRequest(**{**defaults, **fields})])
    return plan.draft_lens[0], plan.reasons[0]


def observe(policy, verify_len, accepted, times=1, request_class=RequestClass.GENERAL_CHAT):
    row = StepRow(
        request_id="r",
        tenant="t",
        request_class=request_class,
        reason=Reason.FIXED,
        verify_len=verify_len,
        accepted=accepted,
        emitted=accepted + 1,
    )
    parts = dict.fromkeys(("draft_ms", "verify_ms", "sample_ms", "overhead_ms", "step_ms"), 1.0)
    for _ in range(times):
        policy.observe(StepRecord(step=0, at_s=0.0, load=Load(1, 0, 0, 1.0), rows=(row,), **parts))


def test_the_rules():
    policy, force = ReferencePolicy(PolicySettings()), Speculation(SpeculationMode.FORCE, 6)
    assert decide(policy) == (4, Reason.FIXED)
    assert decide(policy, running=32) == (0, Reason.OFF_LOAD)
    assert decide(policy, running=32, speculation=force) == (6, Reason.FORCED)
    creative = {"request_class": RequestClass.CREATIVE_WRITING}
    assert decide(policy, temperature=0.9, **creative) == (0, Reason.OFF_ACCEPTANCE)
    assert decide(policy, temperature=0.8, **creative) == (4, Reason.FIXED)
    observe(policy, 4, 2, times=400)
    assert decide(policy) == (0, Reason.OFF_ACCEPTANCE)
    observe(policy, 4, 0, times=400, request_class=RequestClass.CODE_EDIT)
    assert decide(policy, request_class=RequestClass.CODE_EDIT) == (4, Reason.FIXED)


def test_a_class_that_went_off_is_tried_again():
    policy = ReferencePolicy(PolicySettings())
    observe(policy, 4, 1, times=400)
    assert decide(policy)[0] == 0
    observe(policy, 0, 0, times=3000)
    assert decide(policy)[0] == 4


def test_tenants_are_judged_apart():
    policy = ReferencePolicy(PolicySettings())
    observe(policy, 4, 0, times=400)
    assert decide(policy, tenant="other") == (4, Reason.FIXED)


class Knee:
    """Flat up to `knee` tokens, then proportional."""

    def __init__(self, knee):
        self.knee = knee

    def step_ms_many(self, tokens, context, sequences):
        return 10.0 * np.maximum(1.0, tokens / self.knee)


@pytest.mark.parametrize(("knee", "ends"), [(16, [8, 16]), (64, [32, 64]), (10**6, [512, None])])
def test_the_cliff_lies_where_the_machine_is_full(knee, ends):
    found = cliff(Knee(knee), 0.9 ** np.arange(1, 9), 100, 4)
    assert found["adaptive"]["ends_between"] == ends
    fixed, adaptive = found["fixed"]["gain"], found["adaptive"]["gain"]
    assert all(adaptive[load] >= fixed[load] - 1e-9 for load in fixed)


def test_nothing_to_gain_is_said():
    assert cliff(Knee(1), 0.3 ** np.arange(1, 9), 100, 4)["adaptive"]["ends_between"] == [None, 1]
