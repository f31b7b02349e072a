"""What a policy remembers: rows that change hands, requests, drafters, and what a step teaches."""

from __future__ import annotations

import json

import numpy as np
import pytest

from decodeloop.policy.beliefs import Beliefs
from decodeloop.policy.hedge import Draw, weights
from decodeloop.policy.slots import Leaves, membership
from decodeloop.policy.tracks import FIRST_CREDIT, LEAST_CREDIT, MOST_CREDIT, MOST_SLACK, Tracks
from decodeloop.types import DecodeRequest, Load, Reason, RequestClass, StepRecord, StepRow

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
K = 6


def request(name="r", tenant="t", request_class=EDIT):
    return DecodeRequest(name, tenant, request_class, 100, K, None, ("ngram", "suffix", "small"))


def row(name="r", tenant="t", request_class=EDIT, **fields):
    defaults = {"reason": Reason.THROUGHPUT, "emitted": fields.get("accepted", 0) + 1, "context_tokens": 100}
    return StepRow(request_id=name, tenant=tenant, request_class=request_class, **{**defaults, **fields})


def record(*rows, step=0):
    return StepRecord(
        step=step,
        at_s=0.0,
        load=Load(len(rows), 0, 0, 1.0),
        draft_ms=0.0,
        verify_ms=1.0,
        sample_ms=0.0,
        overhead_ms=0.0,
        step_ms=1.0,
        rows=rows,
    )


def watch(beliefs, *rows, times=60):
    for step in range(times):
        taught = record(*rows, step=step)
        tracks = beliefs.tracks.of(taught.rows)
        beliefs.read(taught, tracks)
        beliefs.observe(taught, tracks)


def affinity(beliefs, asked, drafter):
    return beliefs.affinity(beliefs.tracks.of([asked])[0], asked, drafter)


def survival(beliefs, asked, drafter):
    return beliefs.survival([affinity(beliefs, asked, drafter)])[0]


def played(verified, accepted, drafter="ngram", **fields):
    return {"drafter": drafter, "draft_len": K, "verify_len": verified, "accepted": accepted, **fields}


def test_free_drafters_teach_without_being_played():
    """Depth 0: the one token of the step is compared with every free drafter's first."""
    beliefs = Beliefs(K, frozenset({"ngram"}))
    watch(beliefs, row(shadow_match={"ngram": 1, "suffix": 0}))
    assert survival(beliefs, request("new"), "ngram")[0] > 0.9
    assert survival(beliefs, request("new"), "suffix")[0] < 0.1
    assert "suffix" in beliefs.free


def test_a_shadow_that_matched_everything_is_censored():
    """One emitted token shows position 0 alone; what is expected beyond still comes from the prior."""
    beliefs = Beliefs(K, frozenset())
    watch(beliefs, row(shadow_match={"ngram": 1}))
    observations = beliefs.acceptance.estimate("t", EDIT, "ngram").observations
    assert observations[0] > 10
    assert np.all(observations[1:] == 0)


def test_the_bonus_token_judges_the_rest_of_a_draft_that_was_cut():
    """2 of 6 verified, both accepted; the shadow score says that the third was right as well: 3 labels, all good."""
    beliefs = Beliefs(K, frozenset({"ngram"}))
    watch(beliefs, row(**played(2, 2, shadow_match={"ngram": 3})))
    observations = beliefs.acceptance.estimate("t", EDIT, "ngram").observations
    assert np.count_nonzero(observations) == 3
    assert beliefs.acceptance.estimate("t", EDIT, "ngram").survival[2] > 0.85


def test_a_paid_draft_that_was_not_verified_teaches_nothing():
    beliefs = Beliefs(K, frozenset({"ngram"}))
    watch(beliefs, row(**played(0, 0, drafter="small")))
    assert not beliefs.acceptance.estimate("t", EDIT, "small").observations.any()


def test_a_request_stands_out_from_its_class():
    beliefs = Beliefs(K, frozenset({"ngram"}))
    good = row("good", **played(4, 4, shadow_match={"ngram": 4}))
    watch(beliefs, good, row("bad", **played(4, 0, shadow_match={"ngram": 0})))
    first = [survival(beliefs, request(name), "ngram")[0] for name in ("good", "unknown", "bad")]
    assert first[0] > first[1] + 0.15 > first[2] + 0.3


def test_tenants_share_nothing():
    beliefs = Beliefs(K, frozenset({"ngram"}))
    before = survival(beliefs, request(tenant="b"), "ngram").copy()
    reward = beliefs.expected_reward(affinity(beliefs, request(tenant="b"), "ngram"))
    watch(beliefs, row(tenant="a", **played(4, 0, shadow_match={"ngram": 0}, scores=(0.9, 0.8, 0.7, 0.6))))
    assert survival(beliefs, request(tenant="b"), "ngram") == pytest.approx(before)
    assert beliefs.expected_reward(affinity(beliefs, request(tenant="b"), "ngram")) == pytest.approx(reward)
    said = [np.full(K, 0.9) ** np.arange(1, K + 1)]
    fresh = Beliefs(K, frozenset({"ngram"}))
    ours, theirs = (b.drafted([affinity(b, request(tenant="b"), "ngram")], said)[0] for b in (beliefs, fresh))
    assert ours == pytest.approx(theirs)


def test_what_a_paid_drafter_missed_is_counted():
    beliefs = Beliefs(K, frozenset({"ngram"}))

    def step(taught):
        tracks = beliefs.tracks.of(taught.rows)
        return beliefs.read(taught, tracks)

    assert step(record(row(**played(2, 2, drafter="small"), context_tokens=100, emitted=3))) == {"small": 100}
    for i in range(5):
        assert step(record(row(**played(2, 1), context_tokens=103 + 2 * i, emitted=2))) == {}
    assert step(record(row(**played(2, 0, drafter="small"), context_tokens=113))) == {"small": 10}


def test_of_many_rows_some_are_learned_from_and_all_in_turn():
    beliefs = Beliefs(K, frozenset({"ngram"}))
    rows = [row(f"r{i}", request_class=EDIT, tenant=f"t{i}", shadow_match={"ngram": 1}) for i in range(40)]
    watch(beliefs, *rows, times=40)
    taught = {entry["tenant"] for entry in beliefs.describe()["survival"]}
    assert len(taught) == 40


def test_confidence_is_believed_as_far_as_it_has_deserved():
    """A boastful drafter: it always says 0.95 and is right half the time."""
    beliefs, rng = Beliefs(K, frozenset({"ngram"})), np.random.default_rng(0)
    said = tuple((0.95 ** np.arange(1, K + 1)).tolist())
    for step in range(400):
        right = int(np.argmin(np.append(rng.random(K) < 0.5, False)))
        taught = record(row(**played(K, right, shadow_match={"ngram": right}, scores=said)), step=step)
        beliefs.observe(taught, beliefs.tracks.of(taught.rows))
    calibrated = beliefs.meaning(affinity(beliefs, request("new"), "ngram"), said).survival(K)
    assert calibrated[0] == pytest.approx(0.5, abs=0.08)
    assert np.all(np.diff(calibrated) < 0)
    json.dumps(beliefs.describe(), allow_nan=False)


def test_rows_are_reused_and_their_users_told():
    leaves, cleared = Leaves(capacity=3), []
    leaves.tell(cleared.append, lambda _: None)
    rows = {leaves.row("t", request_class, "x") for request_class in (EDIT, CHAT, RequestClass.SQL)}
    assert rows == {0, 1, 2}
    generation = leaves.generation
    assert leaves.row("t", EDIT, "x") == 0
    assert leaves.row("t", RequestClass.TRANSLATION, "x") == 1  # chat was used least recently
    assert leaves.generation > generation
    assert cleared == [0, 1, 2, 1]


def test_a_forgotten_tenant_takes_its_leaves_along():
    leaves = Leaves(capacity=2)
    for tenant in ("a", "b", "c"):
        leaves.row(tenant, EDIT, "x")
    assert {leaf[0] for leaf, _ in leaves.items()} == {"b", "c"}


def test_a_stale_row_number_is_looked_up_again():
    beliefs = Beliefs(K, frozenset())
    beliefs._leaves.capacity = 2
    track = beliefs.tracks.of([request()])[0]
    first = beliefs.affinity(track, request(), "x")
    for tenant in "abc":
        affinity(beliefs, request(tenant=tenant), "x")
    again = beliefs.affinity(track, request(), "x")
    assert again is first
    assert ("t", EDIT, "x") in dict(beliefs._leaves.items())
    assert dict(beliefs._leaves.items())[("t", EDIT, "x")] == again.leaf


def test_membership_sums_by_row():
    distinct, member = membership(np.array([5, 2, 5]))
    assert distinct.tolist() == [2, 5]
    assert (member @ np.array([1.0, 10.0, 100.0])).tolist() == [10.0, 101.0]


def test_only_so_many_requests_are_remembered():
    tracks = Tracks(capacity=2)
    first, _ = tracks.of([request("a"), request("b")])
    assert tracks.of([request("a")])[0] is first
    tracks.of([request("c")])  # b goes
    assert tracks.of([request("a")])[0] is first


def test_credit_is_booked_within_limits():
    tracks = Tracks()
    for accepted, expected in ((9, MOST_CREDIT), (0, LEAST_CREDIT)):
        taught = record(row(accepted=accepted, emitted=accepted + 1))
        for _ in range(40):
            tracks.credit(taught, tracks.of(taught.rows), slowness=1.5, budget=0.05)
        assert tracks.of([request()])[0].credit == expected


def test_a_new_request_begins_with_what_its_class_has_typically():
    tracks = Tracks()
    assert tracks.of([request("unknown")])[0].credit == FIRST_CREDIT
    for accepted, kind in ((3, EDIT), (0, CHAT)):
        taught = record(row("old", request_class=kind, accepted=accepted, emitted=accepted + 1))
        for _ in range(1000):
            tracks.credit(taught, tracks.of(taught.rows), slowness=1.5, budget=0.05)
    gaining, losing = tracks.of([request("new", request_class=EDIT), request("also new", request_class=CHAT)])
    assert gaining.credit > 0.9 * MOST_CREDIT
    assert losing.credit < 0.0


def test_what_nobody_took_of_a_request_hardly_piles_up():
    tracks, plain = Tracks(), record(row(emitted=1))
    for _ in range(10):
        tracks.credit(plain, tracks.of(plain.rows), slowness=1.0, budget=0.05)
    (track,) = tracks.of(plain.rows)
    assert track.credit == pytest.approx(10 * 0.05)
    for _ in range(1000):
        tracks.credit(plain, tracks.of(plain.rows), slowness=1.0, budget=0.05)
    assert track.credit == pytest.approx(MOST_SLACK)
    assert tracks.of([request("next")])[0].credit == 0.0
    slowed = record(row(emitted=1))
    tracks.credit(slowed, tracks.of(slowed.rows), slowness=1.2, budget=0.05)
    assert track.credit == pytest.approx(MOST_SLACK - 0.2 + 0.05 * 1.2)


def test_hedge_weighs_by_reward_and_draws_without_chance():
    assert weights([1.0, 1.0]) == [0.5, 0.5]
    assert weights([2.0, 1.0])[0] > 0.95
    assert weights([1e6, 0.0]) == [1.0, 0.0]
    draws = [[draw.pick(("a", "b"), (1.0, 0.9)) for _ in range(1000)] for draw in (Draw(), Draw())]
    assert draws[0] == draws[1]
    assert draws[0].count("a") / 1000 == pytest.approx(weights([1.0, 0.9])[0], abs=0.01)
