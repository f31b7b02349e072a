"""The guard on made-up records, where what speculation costs and earns is known."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest

from decodeloop.policy.guard import PlainGuard, Stand, Watch
from decodeloop.policy.lost_time import LOST_SHARE
from decodeloop.types import Load, Reason, RequestClass, StepRecord, StepRow

COPY, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
PLAIN_MS = 10.0


def row(request_class, verified=0, accepted=0, paid=0):
    return StepRow(
        request_id="r",
        tenant="t",
        request_class=request_class,
        reason=Reason.THROUGHPUT,
        drafter="small" if paid else "ngram",
        draft_len=max(verified, paid),
        verify_len=verified,
        accepted=accepted,
        emitted=accepted + 1,
        shadow_match={} if paid else {"ngram": accepted},
    )


def step(guard, rows, ms, draft_ms=0.0):
    record = StepRecord(
        step=0,
        at_s=0.0,
        load=Load(len(rows), 0, 0, 1.0),
        draft_ms=draft_ms,
        verify_ms=ms - draft_ms,
        sample_ms=0.0,
        overhead_ms=0.0,
        step_ms=ms,
        rows=tuple(rows),
    )
    guard.observe(record, PLAIN_MS)


def stand(guard, request_class=COPY):
    return guard.stand(("t", request_class))


def test_what_pays_stays_on():
    guard = PlainGuard(0.05)
    for i in range(400):
        step(guard, [row(COPY, 4, 4 * (i % 2))], 14.0)
    assert stand(guard) is Stand.ON


def test_what_loses_goes_off_comes_back_on_trial_and_stays_if_it_pays():
    guard = PlainGuard(0.05)
    for _ in range(100):
        step(guard, [row(COPY, 4, 0)], 14.0)
    assert stand(guard) is Stand.OFF
    for _ in range(12000):  # plain meanwhile: a hundredth of the time may be lost, what is lost already included
        step(guard, [row(COPY)], PLAIN_MS)
    assert stand(guard) is Stand.TRIAL
    for _ in range(60):
        step(guard, [row(COPY, 4, 4)], 14.0)
    assert stand(guard) is Stand.ON


def test_what_a_class_lost_until_it_was_found_out_is_made_up_for_before_it_is_tried_again():
    guard, lost_ms, plain_steps = PlainGuard(0.05), 0.0, 0
    while stand(guard) is Stand.ON:
        step(guard, [row(COPY, 4, 0)], 14.0)
        lost_ms += 4.0
    while stand(guard) is Stand.OFF:
        step(guard, [row(COPY)], PLAIN_MS)
        plain_steps += 1
    assert LOST_SHARE * plain_steps * PLAIN_MS > 0.9 * lost_ms


def test_a_failed_trial_waits_longer():
    guard, trials, waited = PlainGuard(0.05), [], 0
    for i in range(30000):
        standing = stand(guard)
        if standing is Stand.OFF:
            step(guard, [row(COPY)], PLAIN_MS)
            waited += 1
        else:
            if waited:
                trials.append(i)
            waited = 0
            step(guard, [row(COPY, 4, 0)], 14.0)
    gaps = [b - a for a, b in pairwise(trials) if b - a > 30]
    assert len(gaps) >= 2
    assert gaps[-1] > 1.5 * gaps[0]
    assert guard.describe()["lost_share"] < 3 * LOST_SHARE  # the first find is not a probe


def test_drafting_that_is_paid_and_not_verified_counts():
    guard = PlainGuard(0.05)
    for _ in range(200):
        step(guard, [row(COPY, verified=0, paid=4)], 13.0, draft_ms=3.0)
    assert stand(guard) is Stand.OFF


def test_a_try_is_charged_once_and_not_laid_to_the_class_it_was_made_on():
    guard = PlainGuard(0.05)
    tried = replace(row(COPY, verified=2, accepted=1), reason=Reason.PROBE, drafter="small", shadow_match={})
    for _ in range(40):
        guard.spend(30.0)
        step(guard, [tried], 43.0, draft_ms=30.0)
        for _ in range(400):
            guard.rest(PLAIN_MS)
    assert stand(guard) is Stand.ON
    assert guard.describe()["lost_share"] == pytest.approx(30.0 / 4043.0, abs=1e-4)


def test_a_class_answers_for_its_own_speculation_only():
    """Copying slows everyone; chat's own modest drafts pay for themselves beside it."""
    guard = PlainGuard(math.inf)
    for i in range(300):
        step(guard, [row(COPY, 8, 8), row(CHAT, 1, int(i % 10 < 6))], 16.0)
    assert stand(guard, CHAT) is Stand.ON
    assert stand(guard, COPY) is Stand.ON


def test_a_class_that_drags_behind_another_one_is_still_found():
    guard = PlainGuard(math.inf)
    for _ in range(300):
        step(guard, [row(COPY, 4, 4), row(CHAT, 8, 0)], 16.0)
    assert stand(guard, CHAT) is not Stand.ON
    assert stand(guard, COPY) is Stand.ON


def test_the_bound_tightens_when_bystanders_lose_more_than_promised_and_recovers():
    guard = PlainGuard(0.05)
    for _ in range(200):
        step(guard, [row(COPY, 8, 8), row(CHAT)], 12.0)
    assert guard.interference(2) < 0.03
    for _ in range(2000):
        step(guard, [row(COPY, 8, 8), row(CHAT)], 10.2)
    assert guard.interference(2) == pytest.approx(0.05)


def test_a_bound_that_a_crowd_has_broken_is_tightened_in_crowds_alone():
    guard = PlainGuard(0.05)
    for _ in range(200):
        step(guard, [row(COPY, 8, 8), *[row(CHAT)] * 15], 12.0)
    assert guard.interference(16) < 0.03
    step(guard, [row(COPY, 8, 8), row(CHAT)], 10.2)
    assert guard.interference(2) == pytest.approx(0.05)
    assert guard.interference(16) < 0.03


def test_a_machine_with_slow_moments_is_not_the_others_speculation():
    """One step in ten takes twice as long, whatever is done in it; speculation takes 2 % more."""
    guard = PlainGuard(0.05)
    for i in range(3000):
        slow = 2.0 if i % 10 == 7 else 1.0
        speculates = i % 3 == 0
        step(guard, [row(COPY, 2, 2) if speculates else row(COPY), row(CHAT)], (10.2 if speculates else 10.0) * slow)
    assert guard.interference(2) == pytest.approx(0.05)
    speeds = {entry["class"]: entry["speed"] for entry in guard.describe()["speed_against_plain"]}
    assert speeds["general_chat"] == pytest.approx(0.993, abs=0.02)
    for _ in range(600):
        step(guard, [row(COPY, 2, 2), row(CHAT)], 13.0)
    assert guard.interference(2) < 0.04


def test_one_noisy_step_is_no_verdict():
    guard = PlainGuard(0.05)
    for i in range(300):
        step(guard, [row(COPY, 4, 1)], 400.0 if i == 150 else 14.0)
    assert stand(guard) is Stand.ON


def test_time_pays_for_probes_in_resting_steps_too():
    guard = PlainGuard(0.05)
    assert guard.affords_probe()
    guard.spend(5.95)
    for _ in range(30):
        assert not guard.affords_probe()
        step(guard, [row(COPY)], PLAIN_MS)
        guard.rest(PLAIN_MS)
    assert guard.affords_probe()


def test_watching_reports_and_never_acts():
    watch = Watch()
    for _ in range(100):
        step(watch, [row(COPY, 4, 0), row(CHAT)], 20.0)
    assert stand(watch) is Stand.ON
    assert not watch.affords_probe()
    speeds = {entry["class"]: entry["speed"] for entry in watch.describe()["speed_against_plain"]}
    assert speeds == {"code_edit": pytest.approx(0.5), "general_chat": pytest.approx(0.5)}


@pytest.mark.parametrize("guard", [PlainGuard(0.05), PlainGuard(math.inf), Watch(), Watch(0.1)])
def test_describes_itself_as_json(guard):
    step(guard, [row(COPY, 4, 4)], 14.0)
    json.dumps(guard.describe(), allow_nan=False)


def test_prefill_and_empty_steps_judge_nobody():
    guard = PlainGuard(0.05)
    prefill = StepRow(request_id="p", tenant="t", request_class=COPY, reason=Reason.PREFILL, prefill_tokens=99)
    for rows in ([prefill], []):
        step(guard, rows, 50.0)
    assert stand(guard) is Stand.ON
    assert guard.describe()["speed_against_plain"] == []
