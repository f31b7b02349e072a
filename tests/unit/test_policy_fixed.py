import numpy as np
import pytest

from decodeloop.policy import PolicySettings
from decodeloop.policy.fixed import FixedPolicy
from decodeloop.policy.off import OffPolicy
from decodeloop.types import (
    DecodeRequest,
    Knowledge,
    Load,
    Reason,
    RequestClass,
    Scores,
    Speculation,
    SpeculationMode,
)

OFF, FORCE, AUTO = SpeculationMode.OFF, SpeculationMode.FORCE, SpeculationMode.AUTO
LOAD = Load(1, 0, 10, 1.0)


def request(*asked, room=12, cap=None, drafters=("ngram", "suffix")):
    return DecodeRequest(
        "r", "t", RequestClass.SQL, 10, room, cap, drafters, Speculation(*asked) if asked else Speculation()
    )


def planned(policy, one):
    plan = policy.plan(LOAD, [one])
    return plan.draft_lens[0], plan.drafters[0], plan.reasons[0]


FIXED = FixedPolicy(PolicySettings(draft_len=4, max_draft_len=8))


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (request(), (4, "ngram", Reason.FIXED)),
        (request(AUTO, 6), (6, "ngram", Reason.FIXED)),
        (request(AUTO, 0), (0, None, Reason.FIXED)),
        (request(AUTO, 30), (8, "ngram", Reason.FIXED)),
        (request(AUTO, None, "suffix"), (4, "suffix", Reason.FIXED)),
        (request(AUTO, None, "suffix", drafters=("ngram",)), (0, None, Reason.NO_PROPOSAL)),
        (request(drafters=()), (0, None, Reason.NO_PROPOSAL)),
        (request(room=3, cap=Reason.CAPPED_LIMIT), (3, "ngram", Reason.CAPPED_LIMIT)),
        (request(room=0, cap=Reason.CAPPED_KV), (0, None, Reason.CAPPED_KV)),
        (request(room=4, cap=Reason.CAPPED_KV), (4, "ngram", Reason.FIXED)),
        (request(room=3), (3, "ngram", Reason.FIXED)),
        (request(OFF), (0, None, Reason.OFF_USER)),
        (request(OFF, 5), (0, None, Reason.OFF_USER)),
        (request(FORCE), (8, "ngram", Reason.FORCED)),
        (request(FORCE, 2, "suffix"), (2, "suffix", Reason.FORCED)),
        (request(FORCE, 0), (0, None, Reason.FORCED)),
        (request(FORCE, 6, room=2, cap=Reason.CAPPED_LIMIT), (2, "ngram", Reason.FORCED)),
        (request(FORCE, 6, room=0, cap=Reason.CAPPED_LIMIT), (0, None, Reason.CAPPED_LIMIT)),
    ],
)
def test_fixed_plans(one, expected):
    assert planned(FIXED, one) == expected


def test_the_operators_drafter_comes_before_the_engines_and_after_the_callers():
    policy = FixedPolicy(PolicySettings(drafter="suffix"))
    assert planned(policy, request())[1] == "suffix"
    assert planned(policy, request(AUTO, None, "ngram"))[1] == "ngram"
    assert planned(policy, request(drafters=("ngram",)))[1] == "ngram"


@pytest.mark.parametrize("one", [request(), request(AUTO, 6), request(AUTO, None, "suffix")])
def test_off_drafts_nothing_of_its_own(one):
    assert planned(OffPolicy(PolicySettings()), one) == (0, None, Reason.FIXED)


def test_off_obeys_force():
    assert planned(OffPolicy(PolicySettings()), request(FORCE, 3)) == (3, "ngram", Reason.FORCED)


def test_all_of_a_draft_is_verified_and_an_empty_one_says_so():
    requests = [request(), request(), request(), request(OFF)]
    plan = FIXED.plan(LOAD, requests)
    scores = Scores(tuple(np.ones(n) for n in (4, 2, 0, 0)), Knowledge.SELF)
    decision = FIXED.allocate(plan, scores)
    assert decision.verify_lens == (4, 2, 0, 0)
    assert decision.reasons == (Reason.FIXED, Reason.FIXED, Reason.NO_PROPOSAL, Reason.OFF_USER)


@pytest.mark.parametrize("draft_len", [-1, 9])
def test_an_impossible_length_is_refused(draft_len):
    with pytest.raises(ValueError, match=f"draft_len {draft_len} is not within 0..max_draft_len 8"):
        FixedPolicy(PolicySettings(draft_len=draft_len, max_draft_len=8))
