"""Replaying policies over steps that the simulated engine recorded (synthetic)."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.replay import Situation, cost_samples, judged, replay
from decodeloop.types import Reason, RequestClass, StepRow
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
    again = replay(policy("fixed"), running.records, Truth(), Situation(K))
    assert again.recorded.tokens == again.replayed.tokens == running.tokens
    assert again.speedup == pytest.approx(1.0)
    assert again.replayed.guessed_share == 0.0
    assert again.recorded.rate == pytest.approx(running.rate, rel=0.02)
    assert again.replayed.steps == 400


@pytest.mark.parametrize("classes", [(EDIT,), (EDIT, CHAT), (CREATIVE,) * 4, (CHAT,) * 8])
def test_what_replay_says_of_another_policy_is_what_running_it_gives(classes):
    """Recorded at full depth, so that nothing has to be guessed: adaptive in truth against adaptive replayed."""
    recorded = run("fixed", classes, draft_len=K, steps=700, warm=0)
    said = replay(policy("adaptive"), recorded.records[:], Truth(), Situation(K))
    truth = run("adaptive", classes).rate / run("fixed", classes, draft_len=K).rate
    assert said.speedup == pytest.approx(truth, rel=0.12)
    assert said.replayed.guessed_share == 0.0


def test_what_nobody_judged_is_guessed_from_the_record_and_said_so():
    """Recorded at depth 2; at depth 8 the policy asks for more than was ever looked at."""
    recorded = run("fixed", (EDIT,), draft_len=2)
    for record in recorded.records:
        for row in record.rows:
            row.shadow_match.clear()
    wider = [_drafted_to(record, K) for record in recorded.records]
    deep = replay(policy("fixed", K), wider, Truth(), Situation(K))
    assert deep.replayed.guessed_share > 0.2
    assert deep.replayed.tokens > 1.3 * deep.recorded.tokens
    assert deep.speedup > 1.0


RECORDED = run("fixed", (EDIT, CHAT), draft_len=K, steps=300, warm=0)


def _drafted_to(record, length):
    return replace(record, rows=tuple(replace(row, draft_len=length) for row in record.rows))


def test_reasons_are_counted_and_plain_stays_plain():
    recorded = run("off", (EDIT,))
    again = replay(policy("adaptive"), recorded.records, Truth(), Situation(K))
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


class Watched:
    """A policy whose decisions are kept, and what it was shown."""

    def __init__(self, inner):
        self.inner, self.learns, self.decided, self.seen = inner, inner.learns, [], []

    def plan(self, load, requests):
        plan = self.inner.plan(load, requests)
        self.decided.append(plan)
        return plan

    def allocate(self, plan, scores):
        decision = self.inner.allocate(plan, scores)
        self.decided.append(decision)
        return decision

    def observe(self, record):
        self.seen.append(record)
        self.inner.observe(record)


@given(st.sampled_from(["adaptive", "throughput", "interactive", "reference", "fixed"]), st.integers(0, 60))
@settings(max_examples=20)
def test_a_decision_knows_nothing_of_its_own_step_or_later_ones(name, at):
    """Whatever came of the drafts from step `at` on, everything decided up to there is the same."""
    records = RECORDED.records[:61]
    changed = [*records[:at], *(_luckless(record) for record in records[at:])]
    one, other = Watched(policy(name)), Watched(policy(name))
    for watched, told in ((one, records), (other, changed)):
        replay(watched, told, Truth(), Situation(K))
    assert one.decided[: 2 * at + 2] == other.decided[: 2 * at + 2]


def _luckless(record):
    rows = (replace(row, accepted=0, emitted=1, shadow_match=dict.fromkeys(row.shadow_match, 0)) for row in record.rows)
    return replace(record, step_ms=9 * record.step_ms, rows=tuple(rows))


@pytest.mark.parametrize("name", policies.names())
def test_every_policy_replays_and_classes_add_up(name):
    found = replay(policy(name), RECORDED.records[:100], Truth(), Situation(K))
    for told in (found.measured, found.recorded, found.replayed):
        assert sum(c.tokens for c in told.classes.values()) == pytest.approx(told.tokens)
        assert sum(c.rows for c in told.classes.values()) == told.total.rows == sum(told.reasons.values())
    assert set(found.replayed.classes) == {EDIT, CHAT}
    slowest = {c: told.tpot_ms for c, told in found.replayed.classes.items()}
    assert slowest[EDIT] <= slowest[CHAT] * 1.001
    assert json.loads(json.dumps(found.to_json()))["replayed"]["classes"]["code_edit"]["rows"] == 100


def test_steps_follow_each_other_as_they_did_when_recorded():
    """Policies keep time by when steps began: slower steps begin later, pauses stay."""
    records = [replace(r, at_s=r.at_s + 0.25 * i) for i, r in enumerate(RECORDED.records[:50])]
    watched = Watched(policy("off"))
    replay(watched, records, Truth(), Situation(K))
    pauses = [b.at_s - a.at_s - a.step_ms / 1e3 for a, b in itertools.pairwise(watched.seen)]
    assert pauses == pytest.approx([0.25] * 49)
    assert watched.seen[-1].at_s != pytest.approx(records[-1].at_s, rel=1e-4)


def test_time_per_token_is_what_the_record_measured():
    found = replay(policy("off"), RECORDED.records, Truth(), Situation(K))
    for name in (EDIT, CHAT):
        assert found.measured.classes[name].tpot_ms == pytest.approx(1.0 / RECORDED.tally[name].speed)
    assert abs(found.time_error) < 0.01


def test_rows_without_a_draft_are_counted_where_the_record_knows_no_reason():
    plain = replace(
        RECORDED.records[0].rows[0], drafter=None, draft_len=0, verify_len=0, scores=(), accepted=0, emitted=1
    )

    def blind(reason):
        record = replace(RECORDED.records[0], rows=(replace(plain, reason=reason),))
        return replay(policy("fixed"), [record], Truth(), Situation(K)).replayed.blind_share

    assert [blind(r) for r in (Reason.OFF_COST, Reason.OFF_LOAD, Reason.PROBE)] == [1.0] * 3
    assert [blind(r) for r in (Reason.NO_PROPOSAL, Reason.OFF_USER)] == [0.0] * 2


def test_what_callers_asked_for_stays():
    rows = tuple(replace(row, reason=Reason.OFF_USER) for row in RECORDED.records[0].rows)
    assert (
        replay(policy("fixed"), [replace(RECORDED.records[0], rows=rows)], Truth(), Situation(K)).replayed.verified == 0
    )
    forced = tuple(replace(row, reason=Reason.FORCED) for row in RECORDED.records[0].rows)
    found = replay(policy("off"), [replace(RECORDED.records[0], rows=forced)], Truth(), Situation(K))
    assert found.replayed.verified == sum(row.draft_len for row in rows)


@given(st.integers(0, K), st.integers(0, K), st.integers(0, K), st.booleans())
def test_no_more_is_known_than_was_judged(drafted, verified, right, shadowed):
    """A free drafter's draft is known one position past what was accepted; any other as far as it was verified."""
    verified = min(verified, drafted)
    accepted = min(verified, right)
    shadows = {"ngram": min(right, accepted + 1, drafted)} if shadowed else {}
    row = StepRow(
        request_id="r",
        tenant="t",
        request_class=EDIT,
        reason=Reason.FIXED,
        drafter="ngram",
        draft_len=drafted,
        verify_len=verified,
        accepted=accepted,
        emitted=accepted + 1,
        shadow_match=shadows,
    )
    seen, known = judged(row)
    assert seen <= known <= drafted
    assert seen == min(right, known)
    if not shadowed:
        assert known <= verified
