"""Survival estimates. All streams are synthetic."""

from __future__ import annotations

import numpy as np
import pytest

from decodeloop.policy.acceptance import AcceptanceModel, Runs
from decodeloop.policy.slots import CAPACITY, Leaves
from decodeloop.types import RequestClass

K = 5


def draws(rng, count, conditional, draft_len=K):
    """Drafts of `draft_len` with a given conditional acceptance per position."""
    hits = rng.random((count, draft_len)) < conditional[:draft_len]
    accepted = np.where(hits.all(axis=1), draft_len, np.argmin(hits, axis=1))
    return Runs(accepted, accepted == draft_len)


class Model(AcceptanceModel):
    """With its own rows."""

    def __init__(self, max_draft_len=K, capacity=CAPACITY):
        self.leaves = Leaves(capacity)
        super().__init__(max_draft_len, self.leaves)
        self.slot = self.leaves.row


def learn(model, slot, runs):
    model.learn(np.full(len(runs.accepted), slot), runs)


def conditional(model, slot):
    return model.conditional[slot]


def test_recovers_known_acceptance_from_drafts_of_any_length():
    """Censoring: short drafts that were accepted whole say nothing about what would have come next."""
    rng, truth = np.random.default_rng(0), np.array([0.9, 0.8, 0.6, 0.7, 0.5])
    model = Model()
    slot = model.slot("t", RequestClass.SQL, "ngram")
    for _ in range(400):
        for draft_len in (1, 2, K):
            learn(model, slot, draws(rng, 4, truth, draft_len))
    assert conditional(model, slot) == pytest.approx(truth, abs=0.06)
    estimate = model.estimate("t", RequestClass.SQL, "ngram")
    assert estimate.survival == pytest.approx(np.cumprod(conditional(model, slot)))
    assert np.all(np.diff(estimate.observations) < 0)


def test_dropping_the_censored_would_bias_low():
    """The negative control of the rule above: throw fully accepted drafts away, and the estimate falls."""
    rng, truth = np.random.default_rng(0), np.full(K, 0.8)
    model, biased = Model(), Model()
    slot, other = model.slot("t", RequestClass.SQL, "x"), biased.slot("t", RequestClass.SQL, "x")
    for _ in range(300):
        runs = draws(rng, 8, truth, 2)
        learn(model, slot, runs)
        kept = ~runs.censored
        learn(biased, other, Runs(runs.accepted[kept], runs.censored[kept]))
    assert conditional(model, slot)[0] == pytest.approx(0.8, abs=0.04)
    assert conditional(biased, other)[0] < 0.6


def test_forgetting_depends_on_drafts_not_on_batch_shape():
    wide, narrow = Model(), Model()
    for model, size in ((wide, 32), (narrow, 1)):
        slot = model.slot("t", RequestClass.SQL, "ngram")
        for _ in range(2000 // size):
            learn(model, slot, Runs(np.full(size, 2), np.zeros(size, bool)))
    assert conditional(wide, 0) == pytest.approx(conditional(narrow, 0), abs=0.01)


def test_zero_acceptance_is_remembered_and_total_acceptance_too():
    model = Model()
    never, always = (model.slot("t", c, "x") for c in (RequestClass.SQL, RequestClass.CODE_EDIT))
    for _ in range(100):
        learn(model, never, Runs(np.zeros(8, int), np.zeros(8, bool)))
        learn(model, always, Runs(np.full(8, K), np.ones(8, bool)))
    assert conditional(model, never)[0] <= 0.02
    assert np.all(conditional(model, always) > 0.97)


def test_an_unvisited_position_leans_on_the_class_and_not_on_the_static_prior():
    model = Model(8)
    slot = model.slot("t", RequestClass.CODE_EDIT, "small")
    for _ in range(50):
        learn(model, slot, Runs(np.full(4, 2), np.ones(4, bool)))  # drafts of 2, always right
    assert conditional(model, slot)[7] > 0.85


def test_a_new_class_starts_from_its_tenant_and_a_new_tenant_from_nothing():
    model = Model()
    fresh = conditional(model, model.slot("b", RequestClass.SQL, "x")).copy()
    slot = model.slot("a", RequestClass.SQL, "x")
    for _ in range(100):
        learn(model, slot, draws(np.random.default_rng(1), 8, np.full(K, 0.9)))
    assert conditional(model, model.slot("a", RequestClass.TRANSLATION, "x"))[0] > 0.85
    assert conditional(model, model.slot("b", RequestClass.TRANSLATION, "x")) == pytest.approx(fresh)
    assert conditional(model, model.slot("b", RequestClass.SQL, "x")) == pytest.approx(fresh)
    assert conditional(model, model.slot("a", RequestClass.SQL, "y")) == pytest.approx(fresh)


def test_a_row_that_changes_hands_keeps_nothing():
    model = Model(capacity=4)
    fresh = conditional(model, model.slot("victim", RequestClass.SQL, "x")).copy()
    for tenant in "abcdefgh":
        slot = model.slot(tenant, RequestClass.SQL, "x")
        learn(model, slot, Runs(np.full(64, K), np.ones(64, bool)))
    assert conditional(model, model.slot("newcomer", RequestClass.SQL, "x")) == pytest.approx(fresh)
    assert len(model.describe()) <= 4


def test_follows_a_change_within_a_few_half_lives():
    rng, model = np.random.default_rng(0), Model()
    slot = model.slot("t", RequestClass.SQL, "x")
    for level in (0.9, 0.3):
        for _ in range(400):
            learn(model, slot, draws(rng, 8, np.full(K, level)))
        assert conditional(model, slot)[0] == pytest.approx(level, abs=0.05)
    model.forget(slot, 0.9)
    learn(model, slot, draws(rng, 64, np.full(K, 0.9)))
    assert conditional(model, slot)[0] > 0.55
