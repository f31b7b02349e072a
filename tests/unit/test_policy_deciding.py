"""Short cuts in deciding: each gives what the long way gives."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.policy import PolicySettings
from decodeloop.policy.acceptance import LEAST, MOST, Runs
from decodeloop.policy.adaptive import PLAIN_TEACHES
from decodeloop.policy.calibration import Calibrator, bin_of, featurise
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.policy.few import padded
from decodeloop.policy.guard import Watch
from decodeloop.policy.interactive import Interactive
from decodeloop.policy.meaning import DOUBT, DOUBT_WEIGHT, MOST_KNOWN
from decodeloop.policy.options import AdaptiveOptions
from decodeloop.policy.sizing import Step
from decodeloop.policy.slots import Leaves
from decodeloop.policy.throughput import PlainGuardedPolicy, Throughput
from decodeloop.policy.tracks import Track
from decodeloop.types import DecodeRequest, Load, Plan, Reason, RequestClass, Scores, Slo, StepRecord, StepRow

K = 6
EDIT = RequestClass.CODE_EDIT


def surface(slope=1.5, stairs=1):
    samples = [
        CostSample(n * length, 100 * n, n, 3.0 + slope * (-(-n * length // stairs)))
        for n in (1, 2, 4, 8)
        for length in range(1, K + 2)
    ]
    return CostSurface(samples)


def request(name="r", proposals=None, room=K):
    told = {"ngram": ()} if proposals is None else proposals
    return DecodeRequest(name, "t", EDIT, 100, room, None, ("ngram",), proposals=told)


def step(rows, costs, prefill=0, aim=None):
    requests = [request(f"r{i}") for i in range(rows)]
    load = Load(rows, 0, 100 * rows, 1.0, prefill_tokens=prefill)
    return Step(load, requests, [Track() for _ in requests], costs, aim or Throughput(), Watch(), K)


def pressed(behind, tpot_ms):
    """`interactive` with requests that are so many tokens behind; None: without an objective."""
    aim = Interactive(AdaptiveOptions())
    wanted = [Slo(tpot_ms=None if tokens is None else tpot_ms) for tokens in behind]
    aim.meet([replace(request(f"r{i}"), slo=slo) for i, slo in enumerate(wanted)])
    for i, tokens in enumerate(behind):
        row = StepRow(request_id=f"r{i}", tenant="t", request_class=EDIT, reason=Reason.INTERACTIVE, emitted=1)
        ms = tpot_ms * (1.0 + (tokens or 0.0))
        aim.follow(
            StepRecord(
                step=0,
                at_s=0.0,
                load=Load(1, 0, 100, 1.0),
                draft_ms=0,
                verify_ms=ms,
                sample_ms=0,
                overhead_ms=0,
                step_ms=ms,
                rows=(row,),
            )
        )
    return aim


@pytest.mark.parametrize("seed", range(4))
def test_a_draft_is_calibrated_as_in_arrays_its_first_token_with_caution(seed):
    rng, leaves = np.random.default_rng(seed), Leaves()
    calibrator = Calibrator(K, leaves)
    slots = np.array([leaves.row("t", EDIT, "ngram"), leaves.row("u", EDIT, "suffix")])
    for _ in range(20):
        taught = rng.integers(0, 2, 64)
        said = np.cumprod(rng.uniform(0.2, 1.0, (64, K)), axis=1)
        runs = Runs.of(rng.integers(0, K, 64).tolist(), [False] * 64)
        calibrator.learn(slots[taught], featurise(said, rng.normal(0, 1, 64)), runs)
    for slot in slots.tolist():
        said, own = np.cumprod(rng.uniform(0.0, 1.0, K)), float(rng.normal(0, 1))
        features = featurise(said[None], np.array([own]))
        here = calibrator.at(np.array([slot]))
        likely = here.predict(features)[0]
        labels = here.bin_labels[here.cells[0, 0] + bin_of(here.curve(features))[0, 0]]
        likely[0] -= DOUBT * np.sqrt(likely[0] * (1.0 - likely[0]) / (labels + DOUBT_WEIGHT))
        expected = np.cumprod(np.clip(likely, LEAST, MOST))
        for most in (1, 3, K, K + 2):
            found = calibrator.meaning(slot, tuple(said.tolist()), own).survival(most)
            assert found == pytest.approx(expected[:most], rel=1e-12)
        shorter = calibrator.meaning(slot, tuple(said[:2].tolist()), own)
        assert shorter.survival(K) == pytest.approx(expected[:2], rel=1e-12)
        assert shorter.first == shorter.survival(1)[0]


def test_what_was_learned_shows_at_once_in_the_short_cut():
    leaves = Leaves()
    calibrator, slot = Calibrator(K, leaves), leaves.row("t", EDIT, "ngram")
    before = calibrator.meaning(slot, (0.5,), 0.0).first
    said = np.full((200, K), 0.5)
    calibrator.learn(np.full(200, slot), featurise(said, np.zeros(200)), Runs.of([0] * 200, [False] * 200))
    assert calibrator.meaning(slot, (0.5,), 0.0).first < 0.5 * before


def test_no_more_drafts_are_remembered_than_there_is_room_for():
    leaves = Leaves()
    calibrator, slot = Calibrator(K, leaves), leaves.row("t", EDIT, "ngram")
    before = calibrator.meaning(slot, (0.5, 0.4), 0.0).survival(2)
    for i in range(2 * MOST_KNOWN):
        calibrator.meaning(slot, (i / (2 * MOST_KNOWN),), 0.0)
        assert len(calibrator._meanings._words) <= MOST_KNOWN
    assert calibrator.meaning(slot, (0.5, 0.4), 0.0).survival(2) == before


def test_what_one_request_was_told_does_not_grow_when_another_asks_further():
    leaves = Leaves()
    calibrator, slot = Calibrator(K, leaves), leaves.row("t", EDIT, "ngram")
    said = (0.9, 0.8, 0.7)
    told = calibrator.meaning(slot, said, 0.0).survival(1)
    assert len(calibrator.meaning(slot, said, 0.0).survival(3)) == 3
    assert len(told) == 1


@settings(max_examples=200, deadline=None)
@given(
    drafts=st.lists(
        st.lists(st.sampled_from([LEAST, 0.3, 0.9, MOST]) | st.floats(LEAST, MOST), max_size=K), min_size=1, max_size=5
    ),
    costs=st.builds(surface, st.floats(0.05, 4.0), st.sampled_from([1, 3])),
    prefill=st.sampled_from([0, 4]),
    bound=st.sampled_from([math.inf, 0.5, 0.05, 0.0]),
    credit=st.floats(-1.0, 2.0),
)
def test_few_tokens_are_allocated_as_many_are(drafts, costs, prefill, bound, credit):
    here = replace(step(len(drafts), costs, prefill), guard=Watch(bound))
    here.tracks[-1].credit = credit
    drafts = [tuple(np.cumprod(own).tolist()) for own in drafts]
    few = here.solve(drafts)
    many = here.solve_many(padded(drafts, K), sum(map(len, drafts)))
    assert few.score == pytest.approx(many.score, rel=1e-9, abs=1e-9)
    assert few.ms == pytest.approx(here.ms(sum(map(len, drafts)), sum(map(bool, drafts)))[few.verify_lens.sum()])
    assert few.tokens == pytest.approx(
        len(drafts) + sum(sum(d[:n]) for d, n in zip(drafts, few.verify_lens, strict=True))
    )


@settings(max_examples=60, deadline=None)
@given(
    rows=st.integers(1, 6),
    slope=st.floats(0.05, 4.0),
    stairs=st.sampled_from([1, 2, 4]),
    prefill=st.sampled_from([0, 5]),
)
def test_nothing_below_the_least_worth_gains_anything(rows, slope, stairs, prefill):
    here = step(rows, surface(slope, stairs), prefill)
    survival = np.full((rows, K), 0.999 * min(here.least_worth, 1.0))
    best, plain = here.solve_many(survival, rows * K), here.solve([()] * rows)
    assert best.score <= plain.score + 1e-9


BEHIND = st.lists(st.none() | st.sampled_from([-3.0, 0.5, 4.0, 40.0]), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(
    behind=BEHIND,
    tpot_ms=st.floats(1.0, 30.0),
    slope=st.floats(0.05, 4.0),
    stairs=st.sampled_from([1, 2, 4]),
    prefill=st.sampled_from([0, 5]),
)
def test_nothing_below_the_least_worth_gains_anything_for_objectives_either(behind, tpot_ms, slope, stairs, prefill):
    rows = len(behind)
    here = step(rows, surface(slope, stairs), prefill, pressed(behind, tpot_ms))
    worths = here.least_worth / np.array(here.edges or [1.0] * rows)
    survival = np.repeat(0.999 * np.minimum(worths, 1.0)[:, None], K, axis=1)
    assert not here.solve_many(survival, rows * K).verify_lens.any()


@settings(max_examples=60, deadline=None)
@given(
    behind=BEHIND,
    tpot_ms=st.floats(1.0, 30.0),
    slope=st.floats(0.05, 4.0),
    prefill=st.sampled_from([0, 5]),
    conditional=st.lists(st.sampled_from([0.2, 0.5, 0.9]), min_size=5, max_size=5),
)
def test_few_tokens_of_unequal_worth_are_allocated_as_many_are(behind, tpot_ms, slope, prefill, conditional):
    here = step(len(behind), surface(slope), prefill, pressed(behind, tpot_ms))
    drafts = [tuple(p**k for k in range(1, 4)) for p in conditional[: len(behind)]]
    few, many = here.solve(drafts), here.solve_many(padded(drafts, K), 3 * len(drafts))
    assert few.score == pytest.approx(many.score, rel=1e-9, abs=1e-9)
    assert few.tokens == pytest.approx(many.tokens)
    assert few.gain_ms == pytest.approx(many.gain_ms)


@settings(max_examples=60, deadline=None)
@given(rows=st.integers(1, 4), conditional=st.floats(0.0, 1.0), slope=st.floats(0.05, 4.0))
def test_whatever_is_verified_gains_at_least_what_step_times_are_known_to(rows, conditional, slope):
    here = step(rows, surface(slope))
    survival = np.cumprod(np.full((rows, K), conditional), axis=1)
    found, plain_rate = here.solve_many(survival, rows * K), rows / here.plain_ms
    assert here.least_gain >= 0.01
    if found.verify_lens.any():
        assert found.tokens / found.ms >= (1.0 + here.least_gain) * plain_rate * (1.0 - 1e-9)
        assert found.ms > here.costs.step_ms(rows + int(found.verify_lens.sum()), 100 * rows, rows)
    else:
        assert found.tokens / found.ms == pytest.approx(plain_rate)


def test_one_point_and_many_agree_while_it_learns():
    costs = surface()
    for number in range(40):
        rows = tuple(StepRow(request_id=f"r{i}", tenant="t", request_class=EDIT, reason=Reason.FIXED) for i in range(2))
        load = Load(2, 0, 200 + number, 1.0)
        costs.observe(StepRecord(**timed(number), load=load, rows=rows), set(), {})
        many = costs.step_ms_many(np.arange(1, 15), load.context_tokens, 2)
        assert [costs.step_ms(n, load.context_tokens, 2) for n in range(1, 15)] == pytest.approx(many.tolist())
    assert costs.step_ms(2, 240, 2) > 1.15 * surface().step_ms(2, 240, 2)  # the machine has slowed, and it shows


def timed(number):
    return {
        "step": number,
        "at_s": 0.0,
        "draft_ms": 0.0,
        "verify_ms": 8.0,
        "sample_ms": 0.0,
        "overhead_ms": 0.0,
        "step_ms": 8.0,
    }


def test_a_step_in_which_nobody_proposes_is_plain():
    policy = PlainGuardedPolicy(PolicySettings(K), surface())
    load = Load(2, 0, 200, 1.0)
    plan = policy.plan(load, [request("a"), request("b")])
    assert plan == Plan((0, 0), (None, None), (Reason.NO_PROPOSAL, Reason.NO_PROPOSAL))
    decision = policy.allocate(plan, Scores((np.zeros(0), np.zeros(0)), 0))
    assert decision.verify_lens == (0, 0)
    assert decision.expected_tokens == 2.0


def test_the_better_of_two_proposals_plays_as_far_as_it_goes_and_room_allows():
    policy = PlainGuardedPolicy(PolicySettings(K), surface(slope=0.3))
    told = {"ngram": (0.9, 0.8, 0.7), "suffix": (0.6, 0.3)}
    asking = [DecodeRequest("r", "t", EDIT, 100, 2, None, ("ngram", "suffix"), proposals=told)]
    plan = policy.plan(Load(1, 0, 100, 1.0), asking)
    assert (plan.drafters, plan.draft_lens) == (("ngram",), (2,))
    decision = policy.allocate(plan, Scores((np.array([0.9, 0.8]),), 0))
    assert decision.verify_lens == (2,)


def test_unlikely_proposals_are_left_but_go_on_being_learned_from():
    policy = PlainGuardedPolicy(PolicySettings(K), surface(slope=2.0))
    asking = [request(proposals={"ngram": (0.05, 0.01)})]
    lens = [policy.plan(Load(1, 0, 100, 1.0), asking).draft_lens[0] for _ in range(64)]
    assert set(lens) == {0, 2}
    assert lens.count(2) == 4


def test_steps_in_which_nobody_was_asked_are_counted_but_hardly_learned_from():
    policy, learned = PlainGuardedPolicy(PolicySettings(K), surface()), []
    learn, policy._learn = policy._learn, lambda record, *how: (learned.append(record.step), learn(record, *how))
    load = Load(1, 0, 100, 1.0)
    for number in range(464):
        policy.plan(load, [request()])
        silent = StepRow(request_id="r", tenant="t", request_class=EDIT, reason=Reason.NO_PROPOSAL, emitted=1)
        policy.observe(StepRecord(**timed(number), load=load, rows=(silent,)))
    assert policy.describe()["reasons"] == {"no_proposal": 464}
    assert len(learned) == pytest.approx(64 + 400 / PLAIN_TEACHES, abs=10)
