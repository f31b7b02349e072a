"""Free drafters speak before the plan: what the plan is told, and what it must not be."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.policy import PolicySettings
from decodeloop.policy.attention import RESTS, SCOUTS
from decodeloop.policy.fixed import FixedPolicy
from decodeloop.speculation import Draft, DraftBlock
from decodeloop.speculation.drafters.scripted import OracleDrafter, WrongDrafter
from decodeloop.types import Reason, Speculation, SpeculationMode
from rig import VOCAB, Rig
from test_cases_output import PROMPT, plain_text

OFF = Speculation(SpeculationMode.OFF)


class Listening(FixedPolicy):
    """Fixed, but remembers what it was told."""

    def __init__(self, settings):
        super().__init__(settings)
        self.told = []

    def plan(self, load, requests):
        self.told += [request.proposals for request in requests]
        return super().plan(load, requests)


class Counting:
    """A drafter that counts how often it is asked, and may sample or cost something."""

    def __init__(self, drafter, *, free=True, sampled=False):
        self._drafter, self.free, self._sampled, self.asked = drafter, free, sampled, 0

    def propose(self, requests):
        self.asked += len(requests)
        drafts = self._drafter.propose(requests).drafts
        if self._sampled:
            drafts = [Draft(d.tokens, tuple(np.eye(VOCAB)[t] for t in d.tokens), d.confidence) for d in drafts]
        return DraftBlock(tuple(drafts))

    def finish(self, *ended):
        self._drafter.finish(*ended)

    def memory_bytes(self):
        return {}


def listening(drafters, **settings):
    rig = Rig(drafters, policy="fixed", **{"draft_len": 3, "shadow_len": 5, **settings})
    rig.engine.policy = Listening(PolicySettings(draft_len=rig.settings.draft_len))
    return rig


@pytest.fixture
def text():
    return plain_text(PROMPT, max_tokens=20)


def test_the_plan_knows_what_free_drafters_say(text):
    rig = listening({"oracle": OracleDrafter([text]), "other": OracleDrafter([])})
    rig.generate(PROMPT, max_tokens=20)
    first = rig.engine.policy.told[0]
    assert first == {"oracle": (1.0,) * 5, "other": ()}


def test_sampled_drafts_stay_secret_until_they_are_played(text):
    """Choosing by what was drawn would change the target's law."""
    rig = listening({"sampled": Counting(OracleDrafter([text]), sampled=True)}, verifier="rejection")
    heard = rig.generate(PROMPT, max_tokens=20)
    assert set(map(len, rig.engine.policy.told)) == {0}
    assert heard.token_ids == list(text[len(PROMPT) :])
    assert max(row.accepted for row in rig.rows) == 3


def test_who_costs_time_is_asked_after_the_plan_and_only_if_it_plays(text):
    paid, free = Counting(OracleDrafter([text]), free=False), Counting(OracleDrafter([text]))
    rig = listening({"free": free, "paid": paid})
    rig.generate(PROMPT, max_tokens=20)
    assert paid.asked == 0
    assert "paid" not in rig.engine.policy.told[0]
    assert free.asked == sum(not row.prefill_tokens for row in rig.rows)  # once a step


def test_a_longer_draft_than_was_told_is_asked_for_again(text):
    rig = listening({"oracle": OracleDrafter([text])}, draft_len=6, shadow_len=2)
    heard = rig.generate(PROMPT, max_tokens=20)
    assert max(row.accepted for row in rig.rows) == 6
    assert max(row.shadow_match["oracle"] for row in rig.rows if not row.prefill_tokens) == 2
    assert heard.token_ids == list(text[len(PROMPT) :])


def test_nobody_is_asked_for_who_wants_no_speculation(text):
    free = Counting(OracleDrafter([text]))
    rig = listening({"free": free})
    rig.generate(PROMPT, max_tokens=10, speculation=OFF)
    assert free.asked == 0
    beside = rig.submit(PROMPT, max_tokens=10, speculation=OFF)
    heard = rig.submit(PROMPT, max_tokens=10)
    rig.run()
    assert heard.token_ids == beside.token_ids == list(text[len(PROMPT) :][:10])
    assert free.asked > 0


def test_a_drafter_that_fails_before_the_plan_is_set_aside(text):
    class Broken(Counting):
        def propose(self, requests):
            raise RuntimeError("out of ideas")

    rig = listening({"broken": Broken(OracleDrafter([])), "oracle": OracleDrafter([text])})
    heard = rig.generate(PROMPT, max_tokens=20)
    assert heard.token_ids == list(text[len(PROMPT) :])
    assert set(rig.engine.policy.told[0]) == {"oracle"}
    assert "out of ideas" in rig.engine.proposers.failed["broken"]


@pytest.mark.parametrize("policy", ["adaptive", "throughput", "interactive"])
def test_learning_policies_on_the_engine_change_no_token(policy, text):
    drafters = {"oracle": OracleDrafter([text]), "wrong": WrongDrafter([text], VOCAB)}
    rig = Rig(drafters, policy=policy, shadow_len=6)
    heard = rig.generate(PROMPT, max_tokens=20)
    assert heard.token_ids == list(text[len(PROMPT) :])
    assert {row.reason for row in rig.rows} <= {Reason.PREFILL, Reason.FIXED, Reason.NO_PROPOSAL, Reason.CAPPED_LIMIT}


def test_of_a_hopeless_class_only_scouts_are_asked_and_what_they_find_wakes_it():
    text = plain_text(PROMPT, max_tokens=60)
    free = Counting(OracleDrafter([text]))
    rig = Rig({"free": free}, policy="off", shadow_len=4)
    for _ in range(20):
        rig.generate(PROMPT, max_tokens=60)
    free.asked = 0
    for _ in range(2 * SCOUTS):
        rig.generate(PROMPT, max_tokens=60)
    assert free.asked == pytest.approx(2 * 60 / RESTS[-1], abs=2)
    rig.engine.policy = FixedPolicy(PolicySettings(draft_len=4))  # now it is heeded whenever it is asked
    for _ in range(SCOUTS):
        heard = rig.generate(PROMPT, max_tokens=60)
        assert heard.token_ids == list(text[len(PROMPT) :])
    rows = len(rig.rows)
    rig.generate(PROMPT, max_tokens=60)
    assert sum(row.accepted for row in rig.rows[rows:]) > 40


def test_who_says_nothing_worth_verifying_is_asked_less_often():
    text = plain_text(PROMPT, max_tokens=60)
    free = Counting(OracleDrafter([text]))
    rig = Rig({"free": free}, policy="off", shadow_len=4)
    rig.generate(PROMPT, max_tokens=60)
    assert free.asked < 20
    resting = [row for row in rig.rows if not row.prefill_tokens and not row.shadow_match]
    assert len(resting) > 40  # no score at all where nobody was asked: silence isn't a miss
