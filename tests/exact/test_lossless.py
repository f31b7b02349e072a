"""Every verifier under every rule that may choose what it sees: all outcomes, total variation under 1e-12."""

from functools import partial
from itertools import product

import numpy as np
import pytest

from decodeloop.evaluation.lossless import tables as lossless_tables
from decodeloop.evaluation.lossless.rules import LEGAL, UNSOUND
from decodeloop.speculation import Draft
from decodeloop.speculation.sampling import Distribution
from decodeloop.speculation.verifiers import verifiers
from decodeloop.speculation.verifiers.block import BlockVerifier, inner_keep
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier
from decodeloop.testing import (
    EXACT,
    Branch,
    TableRows,
    branches,
    point_draft,
    random_table,
    sampled_draft,
)

V, DEPTH = 3, 3
ALL = verifiers.names()
SAMPLED = ["block", "rejection"]  # those for which what decides about a draft matters


def tables(seed, zeros=0.0):
    rng = np.random.default_rng(seed)
    return random_table(rng, V, DEPTH + 1, zeros), random_table(rng, V, DEPTH, zeros)


distance = partial(lossless_tables.distance, length=DEPTH + 1)


def greedy(table):
    return {context: Distribution.point(row.likeliest, V) for context, row in table.items()}


def as_point_masses(chance, rule, q):
    return Draft(rule(chance, q, 2).tokens)


def verdict_on(chance, verifier, target, q, depth=DEPTH):
    draft = sampled_draft(chance, q, depth)
    return verifier.judge(draft, TableRows(target, draft.tokens), chance)


@pytest.mark.parametrize("zeros", [0.0, 0.35])
@pytest.mark.parametrize("rule", LEGAL)
@pytest.mark.parametrize("name", ALL)
def test_legal_rules(name, rule, zeros):
    for seed in range(4):
        target, q = tables(seed, zeros)
        assert distance(verifiers.load(name)(), target, partial(rule, q=q, depth=DEPTH)) < EXACT


@pytest.mark.parametrize("rule", LEGAL + UNSOUND)
@pytest.mark.parametrize("name", ALL)
def test_any_rule_on_a_greedy_target(name, rule):
    for seed in range(3):
        target, q = tables(seed)
        assert distance(verifiers.load(name)(), greedy(target), partial(rule, q=q, depth=DEPTH)) < EXACT


@pytest.mark.parametrize("rule", LEGAL + UNSOUND)
@pytest.mark.parametrize("name", ALL)
def test_any_rule_on_point_masses(name, rule):
    """A sampled draft verified as point masses, which forgets how it was drawn."""
    for seed in range(3):
        target, q = tables(seed)
        assert distance(verifiers.load(name)(), target, partial(as_point_masses, rule=rule, q=q)) < EXACT


@pytest.mark.parametrize("rule", UNSOUND)
def test_any_rule_under_coupled(rule):
    for seed in range(3):
        target, q = tables(seed, 0.2)
        assert distance(CoupledVerifier(), target, partial(rule, q=q, depth=DEPTH)) < EXACT


def given(chance, tokens):
    return point_draft(tokens)


@pytest.mark.parametrize("name", ALL)
def test_every_draft_of_point_masses(name):
    target, _ = tables(0, 0.3)
    for length in range(DEPTH + 1):
        for tokens in product(range(V), repeat=length):
            assert distance(verifiers.load(name)(), target, partial(given, tokens=tokens)) < EXACT


class Decided:
    """Coupled noise under which the target says a given token at each position; no other draw is allowed."""

    def __init__(self, path):
        self.path = path

    def coupled(self, p, position):
        return self.path[position]


def test_coupled_says_the_target_path_whatever_is_drafted():
    """For every function from context to token, draft and truncation. Only contexts along the draft are ever asked."""
    anything = {c: Distribution.of(np.ones(V)) for n in range(DEPTH + 1) for c in product(range(V), repeat=n)}
    for path in product(range(V), repeat=DEPTH + 1):
        for length in range(DEPTH + 1):
            for tokens in product(range(V), repeat=length):
                verdict = CoupledVerifier().judge(Draft(tokens), TableRows(anything, tokens), Decided(path))
                agreed = next((i for i in range(length) if tokens[i] != path[i]), length)
                assert verdict.accepted == agreed
                assert verdict.emitted == path[: agreed + 1]


def mean_accepted(verifier, target, q, depth=DEPTH):
    run = partial(verdict_on, verifier=verifier, target=target, q=q, depth=depth)
    return sum(verdict.accepted * probability for verdict, probability in branches(run))


def test_block_keeps_at_least_as_much_as_rejection():
    kept = []
    for seed in range(20):
        target, q = tables(seed)
        kept.append([mean_accepted(verifier, target, q) for verifier in (RejectionVerifier(), BlockVerifier())])
        assert kept[-1][1] >= kept[-1][0] - EXACT
    token_by_token, as_a_block = np.mean(kept, axis=0)
    assert as_a_block > token_by_token + 0.05


def test_rejection_accepts_one_minus_total_variation():
    """The first token is kept with probability sum min(p, q)."""
    for seed in range(10):
        target, q = tables(seed, 0.2)
        expected = np.minimum(target[()].probs, q[()].probs).sum()
        assert mean_accepted(RejectionVerifier(), target, q, depth=1) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_token_that_was_not_drawn_from_its_q_is_an_error(name):
    target, _ = tables(0)
    draft = Draft((1,), (np.array([1.0, 0.0, 0.0]),), drafter="odd")
    with pytest.raises(ValueError, match="drafter 'odd': token 1 has q = 0"):
        verifiers.load(name)().judge(draft, TableRows(target, (1,)), Branch())


@pytest.mark.parametrize("name", SAMPLED)
def test_a_drafter_that_is_the_target_keeps_everything(name):
    for seed in range(5):
        target, _ = tables(seed, 0.2)
        assert mean_accepted(verifiers.load(name)(), target, target) == pytest.approx(DEPTH, abs=1e-12)
        assert distance(verifiers.load(name)(), target, partial(sampled_draft, q=target, length=DEPTH)) < EXACT


def test_a_block_with_nothing_to_recover_keeps():
    """p = q behind a token that was kept for sure: h would be 0/0."""
    p = Distribution.of(np.array([0.5, 0.3, 0.2]))
    assert inner_keep(Draft((0, 1), (p.probs, p.probs)), 1, 1.0, p) == 1.0


@pytest.mark.parametrize("name", SAMPLED)
def test_q_over_fewer_ids_than_the_target(name):
    """A drafter's vocabulary may be smaller; a token outside it can't have been drawn."""
    target, _ = tables(1)
    narrow = random_table(np.random.default_rng(2), 2, DEPTH)
    assert distance(verifiers.load(name)(), target, partial(sampled_draft, q=narrow, length=2)) < EXACT
    with pytest.raises(ValueError, match="token 2 has q = 0"):
        verifiers.load(name)().judge(Draft((2,), (narrow[()].probs,)), TableRows(target, (2,)), Branch())


def test_enumeration_counts_every_outcome_once():
    target, q = tables(3, 0.2)
    run = partial(verdict_on, verifier=BlockVerifier(), target=target, q=q)
    assert sum(probability for _, probability in branches(run)) == pytest.approx(1.0, abs=1e-12)


def test_a_coin_asked_twice_is_refused():
    chance = Branch()
    chance.accept(0.5, 3, 0)
    with pytest.raises(AssertionError, match="twice"):
        chance.accept(0.5, 3, 0)
