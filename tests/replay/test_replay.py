"""Replaying policies over steps that the simulated engine recorded (synthetic)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.replay import cost_samples, replay
from decodeloop.types import Reason, RequestClass
from simulated import Client, K, SimulatedDrafter, SimulatedEngine, measured_surface, step_ms

EDIT, CHAT, CREATIVE = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT, RequestClass.CREATIVE_WRITING


class Truth:
    def step_ms(self, tokens, context, sequences):
        return float(step_ms(tokens, context, sequences))

    def draft_ms(self, drafter, depth, sequences):
        return 0.0


def policy(name, draft_len=4):
    return policies.load(name)(PolicySettings(K, draft_len), measured_surface())


def run(name, classes, *, draft_len=4, steps=400, warm=200):
    drafters = {"ngram": SimulatedDrafter({EDIT: 3.0, CHAT: -1.0, CREATIVE: -3.0})}
    running = SimulatedEngine(policy(name, draft_len), drafters, [Client(c) for c in classes], seed=3).run(warm)
    running.reset_tally()
    return running.run(steps)


def test_replaying_the_policy_that_recorded_gives_its_own_figures():
    running = run("fixed", (EDIT, CHAT))
    again = replay(policy("fixed"), running.records, Truth(), K)
    assert again.recorded.tokens == again.replayed.tokens == running.tokens
    assert again.speedup == pytest.approx(1.0)
    assert again.replayed.guessed == 0.0
    assert again.recorded.rate == pytest.approx(running.rate, rel=0.02)
    assert again.replayed.steps == 400


@pytest.mark.parametrize("classes", [(EDIT,), (EDIT, CHAT), (CREATIVE,) * 4, (CHAT,) * 8])
def test_what_replay_says_of_another_policy_is_what_running_it_gives(classes):
    """Recorded at full depth, so that nothing has to be guessed: adaptive in truth against adaptive replayed."""
    recorded = run("fixed", classes, draft_len=K, steps=700, warm=0)
    said = replay(policy("adaptive"), recorded.records[:], Truth(), K)
    truth = run("adaptive", classes).rate / run("fixed", classes, draft_len=K).rate
    assert said.speedup == pytest.approx(truth, rel=0.12)
    assert said.replayed.guessed == 0.0


def test_what_nobody_judged_is_guessed_from_the_record_and_said_so():
    """Recorded at depth 2; at depth 8 the policy asks for more than was ever looked at."""
    recorded = run("fixed", (EDIT,), draft_len=2)
    for record in recorded.records:
        for row in record.rows:
            row.shadow_match.clear()
    wider = [_drafted_to(record, K) for record in recorded.records]
    deep = replay(policy("fixed", K), wider, Truth(), K)
    assert deep.replayed.guessed_share > 0.2
    assert deep.replayed.tokens > 1.3 * deep.recorded.tokens
    assert deep.speedup > 1.0


def _drafted_to(record, length):
    return replace(record, rows=tuple(replace(row, draft_len=length) for row in record.rows))


def test_reasons_are_counted_and_plain_stays_plain():
    recorded = run("off", (EDIT,))
    again = replay(policy("adaptive"), recorded.records, Truth(), K)
    assert again.speedup == pytest.approx(1.0)
    assert again.replayed.verified == 0
    assert set(again.replayed.reasons) == {Reason.CAPPED_LIMIT} or set(again.replayed.reasons) == {Reason.NO_PROPOSAL}


def test_a_surface_can_be_fitted_to_the_records_themselves():
    recorded = run("fixed", (EDIT, CHAT, CREATIVE))
    samples = cost_samples(recorded.records, most=100)
    assert len(samples) == 100
    surface = CostSurface(samples)
    assert surface.step_ms(15, 600, 3) == pytest.approx(float(step_ms(15, 600, 3)), rel=0.05)
    assert cost_samples([]) == []
