"""The allocation is optimal: compared with every length vector there is, on instances small enough to list them all."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.policy.allocate import RATE, Items, Priced, allocate, best_score, depth_scores
from decodeloop.policy.fair import Bound, allocate_fairly
from decodeloop.policy.few import allocate_few
from decodeloop.policy.weighed import allocate_weighed, best_rate


def instances(seed, *, rows=(1, 4), depth=(1, 4), rising=False):
    rng = np.random.default_rng(seed)
    count, length = rng.integers(*rows), rng.integers(*depth)
    survival = np.cumprod(rng.choice([0.999, 0.9, 0.6, 0.3, 0.05, rng.random()], size=(count, length)), axis=1)
    ms = rng.uniform(0.5, 3.0, size=count * length + 1)
    if rng.random() < 0.3:  # a staircase
        ms = np.repeat(rng.uniform(0.5, 3.0, size=len(ms)), rng.integers(1, 4))[: len(ms)]
    return rng, survival, np.sort(ms) if rising else ms


def every_vector(survival):
    return [np.array(lens) for lens in product(range(survival.shape[1] + 1), repeat=len(survival))]


def expected(survival, lens):
    return np.array([1.0 + row[:length].sum() for row, length in zip(survival, lens, strict=True)])


def brute_force(survival, ms, objective, *, weights=None, extra=None, allowed=lambda lens, spent: True):
    weights = np.ones(len(survival)) if weights is None else weights
    extra = np.zeros(len(survival)) if extra is None else extra
    best = -np.inf
    for lens in every_vector(survival):
        spent = ms[lens.sum()] + lens @ extra
        if allowed(lens, spent):
            best = max(best, float(objective.score(expected(survival, lens) @ weights, spent)))
    return best


def objectives(rng):
    return [RATE, Priced(float(rng.uniform(0.0, 3.0)))]


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_equals_brute_force_for_any_step_time(seed):
    rng, survival, ms = instances(seed)
    for objective in objectives(rng):
        found = allocate(Items(survival), ms, objective)
        assert found.score == pytest.approx(brute_force(survival, ms, objective), rel=1e-12)
        assert found.gap == 0.0
        assert found.tokens == pytest.approx(expected(survival, found.verify_lens).sum())
        assert found.ms == ms[found.verify_lens.sum()]


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_equals_brute_force_with_weights(seed):
    rng, survival, ms = instances(seed)
    weights = rng.uniform(0.1, 5.0, len(survival))
    for objective in objectives(rng):
        found = allocate(Items(survival, weights), ms, objective)
        assert found.score == pytest.approx(brute_force(survival, ms, objective, weights=weights), rel=1e-12)
        assert found.score == best_score(Items(survival, weights), ms, objective)


@given(st.integers(0, 10**9))
@settings(max_examples=100, deadline=None)
def test_equals_brute_force_when_items_differ_in_cost(seed):
    rng, survival, ms = instances(seed)
    weights, extra = rng.uniform(0.1, 5.0, len(survival)), rng.uniform(0.0, 1.0, len(survival))
    for objective in objectives(rng):
        found = allocate(Items(survival, weights, extra), ms, objective)
        truth = brute_force(survival, ms, objective, weights=weights, extra=extra)
        assert found.score == pytest.approx(truth, rel=1e-9)


@given(st.integers(0, 10**9), st.sampled_from([0.0, 0.05, 0.3]))
@settings(max_examples=150, deadline=None)
def test_the_interference_bound_is_kept_at_no_more_than_its_price(seed, budget):
    rng, survival, ms = instances(seed, rising=bool(seed % 2))
    ms[0] = min(ms[0], ms.min())  # plain is never slower than verifying
    plain = float(ms[0])

    def allowed(lens, spent):
        return bool(np.all(expected(survival, lens) / spent >= (1.0 - budget) / plain - 1e-12))

    credit = rng.choice([0.0, 0.0, 0.4, 3.0], len(survival))

    def afforded(lens, spent):
        return bool(np.all((expected(survival, lens) + credit) / spent >= (1.0 - budget) / plain - 1e-12))

    found = allocate_fairly(Items(survival, credit=credit), ms, plain, budget)
    assert afforded(found.verify_lens, found.ms)
    assert found.score == pytest.approx(brute_force(survival, ms, RATE, allowed=afforded), rel=1e-12)
    for objective in objectives(rng):
        found = allocate_fairly(Items(survival), ms, plain, budget, objective)
        assert allowed(found.verify_lens, found.ms)
        truth = brute_force(survival, ms, objective, allowed=allowed)
        assert found.score <= truth + 1e-12
        assert found.bound >= truth - 1e-12
        assert found.gap == pytest.approx(0.0, abs=1e-12)


@given(st.integers(0, 10**9), st.sampled_from([None, 0.0, 0.05, 0.3]))
@settings(max_examples=300, deadline=None)
def test_a_few_tokens_in_plain_numbers_equal_brute_force_and_arrays(seed, budget):
    rng, survival, ms = instances(seed, rows=(1, 5), rising=bool(seed % 2))
    ms[0] = min(ms[0], ms.min())
    plain = float(ms[0])
    drafted = rng.integers(0, survival.shape[1] + 1, len(survival))
    drafts = [tuple(row[:length]) for row, length in zip(survival.tolist(), drafted, strict=True)]
    survival[np.arange(survival.shape[1]) >= drafted[:, None]] = 0.0
    credit = rng.choice([0.0, 0.0, 0.4, 3.0], len(survival))
    bound = Bound(plain, 1.0 if budget is None else budget)

    def allowed(lens, spent):
        afforded = expected(survival, lens) + credit >= spent * (1.0 - (budget or 0.0)) / plain - 1e-12
        return bool(np.all(lens <= drafted)) and (budget is None or bool(np.all(afforded)))

    for objective in objectives(rng):
        found = allocate_few(drafts, ms.tolist(), objective, bound, credit.tolist())
        assert allowed(found.verify_lens, found.ms)
        assert found.ms == ms[found.verify_lens.sum()]
        assert found.tokens == pytest.approx(expected(survival, found.verify_lens).sum())
        assert found.score == pytest.approx(brute_force(survival, ms, objective, allowed=allowed), rel=1e-12)
        items, most = Items(survival, credit=credit), ms[: drafted.sum() + 1]
        many = (
            allocate(items, most, objective)
            if budget is None
            else allocate_fairly(items, most, plain, budget, objective)
        )
        assert found.score == pytest.approx(many.score, rel=1e-12)


@given(st.integers(0, 10**9))
@settings(max_examples=150, deadline=None)
def test_a_few_tokens_of_unequal_worth_in_plain_numbers_equal_brute_force(seed):
    rng, survival, ms = instances(seed, rows=(1, 5), rising=bool(seed % 2))
    weights = rng.choice([1.0, 2.0, 2.5, 16.0], len(survival))
    drafted = rng.integers(0, survival.shape[1] + 1, len(survival))
    drafts = [tuple(row[:length]) for row, length in zip(survival.tolist(), drafted, strict=True)]

    def allowed(lens, spent):
        return bool(np.all(lens <= drafted))

    for objective in objectives(rng):
        found = allocate_weighed(drafts, weights.tolist(), ms.tolist(), objective)
        assert allowed(found.verify_lens, found.ms)
        assert found.ms == ms[found.verify_lens.sum()]
        assert found.tokens == pytest.approx(expected(survival, found.verify_lens).sum())
        truth = brute_force(survival, ms, objective, weights=weights, allowed=allowed)
        assert found.score == pytest.approx(truth, rel=1e-12)
        if objective is RATE:
            assert best_rate(drafts, weights.tolist(), ms.tolist()) == found.score


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_the_interference_bound_is_kept_when_items_differ_in_cost(seed):
    rng, survival, ms = instances(seed, rising=True)
    extra = rng.uniform(0.0, 0.5, len(survival))
    found = allocate_fairly(Items(survival, None, extra), ms, float(ms[0]), 0.05)
    assert np.all(expected(survival, found.verify_lens) / found.ms >= 0.95 / ms[0] - 1e-9)
    truth = brute_force(
        survival,
        ms,
        RATE,
        extra=extra,
        allowed=lambda lens, spent: bool(np.all(expected(survival, lens) / spent >= 0.95 / ms[0] - 1e-12)),
    )
    assert found.score <= truth + 1e-12
    assert found.bound >= truth - 1e-9


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_certain_tokens_count_for_the_rate_and_for_the_bound(seed):
    """A forced draft of one request earns tokens whatever is decided; the others are decided around it."""
    rng, survival, ms = instances(seed, rising=True)
    certain = np.where(np.arange(len(survival)) == 0, 1.5, 0.0)
    survival[0] = 0.0
    plain = float(ms[0]) * float(rng.uniform(0.7, 1.0))

    def score(lens):
        return (expected(survival, lens) + certain).sum() / ms[lens.sum()]

    def allowed(lens):
        kept = (expected(survival, lens) + certain) / ms[lens.sum()]
        return bool(np.all(kept >= 0.9 / max(plain, ms[0]) - 1e-12))

    items, vectors = Items(survival, certain=certain), every_vector(survival)
    assert allocate(items, ms).score == pytest.approx(max(score(lens) for lens in vectors), rel=1e-12)
    fair = allocate_fairly(items, ms, plain, 0.1)
    assert fair.score == pytest.approx(max(score(lens) for lens in vectors if allowed(lens)), rel=1e-12)
    assert fair.tokens == pytest.approx((expected(survival, fair.verify_lens) + certain).sum())


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_joint_depth_equals_scanning_each_depth(seed):
    rng, survival, ms = instances(seed, rising=True)
    paid = rng.random(len(survival)) < 0.6
    draft_ms = np.cumsum(rng.uniform(0.0, 0.5, survival.shape[1] + 1))
    for objective in objectives(rng):
        scores = depth_scores(Items(survival), paid, ms, draft_ms, objective)
        for depth, score in enumerate(scores):
            cut = np.where(paid[:, None] & (np.arange(survival.shape[1]) >= depth), 0.0, survival)
            truth = brute_force(cut, ms + draft_ms[depth], objective)
            assert score == pytest.approx(truth, rel=1e-12)


@given(st.integers(0, 10**9))
@settings(max_examples=60, deadline=None)
def test_a_longer_draft_never_hides_a_better_choice(seed):
    """Verified parts are prefixes, never more than was drafted, and the same input gives the same lengths."""
    _, survival, ms = instances(seed, rows=(2, 6), depth=(2, 7))
    drafted = np.random.default_rng(seed).integers(0, survival.shape[1] + 1, len(survival))
    survival = np.where(np.arange(survival.shape[1]) < drafted[:, None], survival, 0.0)
    ms = ms[: drafted.sum() + 1]
    found, again = allocate(Items(survival), ms), allocate(Items(survival), ms)
    assert np.all(found.verify_lens <= drafted)
    assert np.array_equal(found.verify_lens, again.verify_lens)


def test_what_was_not_drafted_is_not_verified_even_if_it_were_cheap():
    """A short context makes a token cheaper than the average; that is no reason to verify tokens that don't exist."""
    survival = np.array([[0.9, 0.0, 0.0], [0.9, 0.8, 0.7]])
    found = allocate(Items(survival, None, np.array([-0.4, 0.4])), np.array([1.0, 1.5, 2.0, 2.5, 3.0]))
    assert found.verify_lens[0] <= 1


def test_ties_fill_the_first_rows():
    survival = np.full((4, 2), 0.5)
    ms = np.array([10.0, 10.0, 10.0, 10.0, 99.0, 99.0, 99.0, 99.0, 99.0])
    assert allocate(Items(survival), ms).verify_lens.tolist() == [2, 1, 0, 0]


def test_stopping_at_the_first_decline_would_miss_the_stair():
    """A bucket of 8: the ninth token costs 60 % more, and then eight more are free."""
    survival = np.tile(0.97 ** np.arange(1, 17), (1, 1))
    ms = np.array([1.0] * 8 + [1.5] * 9)
    assert allocate(Items(survival), ms).verify_lens.tolist() == [16]


def test_a_copying_request_may_not_starve_the_others():
    """One predictable request beside seven that are not: the optimum in total is not the one that is fair."""
    survival = np.zeros((8, 12))
    survival[0] = 0.99 ** np.arange(1, 13)
    ms = 10.0 + 0.35 * np.arange(97)
    greedy, fair = allocate(Items(survival), ms), allocate_fairly(Items(survival), ms, 10.0, 0.05)
    assert greedy.ms > 10.0 / 0.95
    assert fair.ms <= 10.0 / 0.95
    assert 0 < fair.verify_lens[0] < greedy.verify_lens[0]
