"""Negative controls: rules that quietly change the target's law, and how far. The harness must see every one."""

from functools import partial

import numpy as np
import pytest

from decodeloop.evaluation.lossless import rules, tables
from decodeloop.evaluation.lossless.bugs import InnerRuleAtTheEnd, Pinned, ResidualOfRejection
from decodeloop.evaluation.lossless.joint import by, joint_distance, top_by_own_q, top_by_survival, top_not_monotone
from decodeloop.evaluation.lossless.rules import INSTANCES, UNSOUND
from decodeloop.evaluation.lossless.tables import everywhere
from decodeloop.speculation import Draft
from decodeloop.speculation.verifiers.block import BlockVerifier
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier
from decodeloop.testing import (
    EXACT,
    TableRows,
    law,
    random_table,
    sampled_draft,
    target_law,
    total_variation,
)

SAMPLED = [RejectionVerifier, BlockVerifier]

distance = partial(tables.distance, length=3)


def ruled(rule):
    found = INSTANCES[rule]
    return found.target, found.q, found.depth, found.least


def test_every_unsound_rule_has_an_instance():
    assert set(INSTANCES) == set(UNSOUND)


@pytest.mark.parametrize("verifier", SAMPLED)
@pytest.mark.parametrize("rule", UNSOUND)
def test_the_rule_is_caught(rule, verifier):
    target, q, depth, least = ruled(rule)
    assert distance(verifier(), target, lambda chance: rule(chance, q, depth)) >= least


@pytest.mark.parametrize("rule", UNSOUND)
def test_the_rule_is_harmless_under_coupled_and_on_point_masses(rule):
    target, q, depth, _ = ruled(rule)
    assert distance(CoupledVerifier(), target, lambda chance: rule(chance, q, depth)) < EXACT
    for verifier in SAMPLED:
        drafting = lambda chance: Draft(rule(chance, q, depth).tokens)  # noqa: E731
        assert distance(verifier(), target, drafting) < EXACT


@pytest.mark.parametrize("verifier", SAMPLED)
def test_instead_of_trimming(verifier):
    """Submit it and let p = 0 reject it, or mask q before drawing."""
    target, q, depth, _ = ruled(rules.trim_first_token)
    assert distance(verifier(), target, lambda chance: rules.whole(chance, q, depth)) < EXACT
    assert distance(verifier(), target, lambda chance: rules.masked_before_drawing(chance, q, depth)) < EXACT


@pytest.mark.parametrize("verifier", SAMPLED)
def test_trimming_ids_out_of_range(verifier):
    """The drafter's vocabulary is larger than the target's."""
    target, q, depth, least = everywhere(0.5, 0.5), everywhere(0.5, 0.0, 0.5), 1, 0.24

    def trimmed(chance):
        draft = sampled_draft(chance, q, depth)
        return draft.cut(0) if draft.tokens[0] == 2 else draft

    assert distance(verifier(), target, trimmed) > least
    assert distance(verifier(), target, lambda chance: rules.whole(chance, q, depth)) < EXACT


@pytest.mark.parametrize("verifier", SAMPLED)
def test_q_other_than_the_one_drawn_from(verifier):
    """Drawn at temperature 1, handed over at temperature 1/2."""
    target, drawn = everywhere(0.5, 0.3, 0.2), everywhere(0.5, 0.3, 0.2)
    sharper = everywhere(*(np.array([0.5, 0.3, 0.2]) ** 2)).get(()).probs

    def drafting(chance):
        draft = sampled_draft(chance, drawn, 2)
        return Draft(draft.tokens, (sharper,) * 2)

    assert distance(verifier(), target, drafting) > 0.12
    assert distance(CoupledVerifier(), target, drafting) < EXACT


# Two requests in one step.


def pairs(seed):
    rng = np.random.default_rng(seed)
    return [random_table(rng, 2, 3) for _ in range(2)], [random_table(rng, 2, 3) for _ in range(2)]


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_global_budget_spent_by_own_q_is_caught(verifier):
    table = everywhere(0.7, 0.3)
    assert joint_distance(verifier(), (table, table), (table, table), by(top_by_own_q)) > 0.037


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_global_budget_spent_by_scores_that_rise_is_caught(verifier):
    table = everywhere(0.5, 0.5)
    assert joint_distance(verifier(), (table, table), (table, table), by(top_not_monotone)) > 0.1


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_stale_global_budget_spent_by_survival_is_exact(verifier):
    for seed in range(6):
        targets, qs = pairs(seed)
        assert joint_distance(verifier(), targets, qs, by(top_by_survival)) < EXACT


def test_global_budgets_are_harmless_under_coupled():
    for allocate in (top_by_own_q, top_not_monotone):
        targets, qs = pairs(0)
        assert joint_distance(CoupledVerifier(), targets, qs, by(allocate)) < EXACT


# Two known bugs of block verification.


def test_the_inner_rule_at_a_truncated_end_is_caught():
    target, q = everywhere(0.5, 0.5), everywhere(0.4, 0.6)

    def said(chance):
        whole = sampled_draft(chance, q, 2)
        draft = whole.cut(1)
        return InnerRuleAtTheEnd(whole).judge(draft, TableRows(target, draft.tokens), chance).emitted

    assert total_variation(law(said, target, 3), target_law(target, 3)) > 0.44
    assert distance(BlockVerifier(), target, lambda chance: rules.one(chance, q, 2)) < EXACT


def test_the_residual_of_rejection_with_block_acceptance_is_caught():
    worst = 0.0
    for seed in range(10):
        rng = np.random.default_rng(seed)
        target, q = random_table(rng, 3, 4), random_table(rng, 3, 3)
        worst = max(worst, distance(ResidualOfRejection(), target, lambda c, q=q: rules.whole(c, q, 3), length=4))
    assert worst > 0.01


@pytest.mark.parametrize("acceptance", [0.5, 1.0])
def test_pinned_acceptance_is_caught(acceptance):
    target, q = everywhere(0.5, 0.3, 0.2), everywhere(0.2, 0.3, 0.5)
    assert distance(Pinned(acceptance), target, lambda chance: rules.whole(chance, q, 2)) > 0.1


# Coins that come back: a rejection means that positions are judged again.


class CoinsByPosition:
    """A chance whose coins (uniform on 0..1, compared with the probability) are fixed by position, block after block.

    What was learnt of a coin is kept as the interval that it lies in.
    """

    def __init__(self, branch):
        self._branch, self._known = branch, {}
        self.draw, self.draft = branch.draw, branch.draft

    def accept(self, probability, position, start):
        low, high = self._known.get(position, (0.0, 1.0))
        share = min(max((probability - low) / (high - low), 0.0), 1.0)
        kept = self._branch.choose((1.0 - share, share)) == 1
        self._known[position] = (low, min(high, probability)) if kept else (max(low, probability), high)
        return kept


def two_blocks(verifier, target, q, chance, coins):
    """Draft two tokens and judge, twice: up to six tokens."""
    said = ()
    for _ in range(2):
        draft = sampled_draft(chance, q, 2, said)
        said += verifier.judge(draft, TableRows(target, draft.tokens, said), coins).emitted
    return said


def two_block_distance(verifier, target, q, coins):
    said = law(lambda chance: two_blocks(verifier, target, q, chance, coins(chance)), target, 6)
    return total_variation(said, target_law(target, 6))


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
def test_blocks_in_a_row_are_exact(verifier):
    rng = np.random.default_rng(5)
    target, q = random_table(rng, 2, 7), random_table(rng, 2, 7)
    assert two_block_distance(verifier(), target, q, lambda chance: chance) < EXACT


def test_coins_that_come_back_are_caught():
    """A verdict of block verification tells about the coins behind it: why coins are keyed by the block's start too."""
    target, q = everywhere(0.5, 0.5, length=7), everywhere(0.1, 0.9, length=7)
    assert two_block_distance(BlockVerifier(), target, q, CoinsByPosition) > 0.06
    assert two_block_distance(RejectionVerifier(), target, q, CoinsByPosition) < EXACT
