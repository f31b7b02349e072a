"""What sampling must catch, in simulated targets that decode wrongly; and the right ones that must pass."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from decodeloop.evaluation.lossless import rules
from decodeloop.evaluation.lossless.answers import Arm, Ask, Remembering
from decodeloop.evaluation.lossless.bugs import Pinned
from decodeloop.evaluation.lossless.distributions import check_distributions
from decodeloop.evaluation.lossless.outcome import Verdict, verdict_of
from decodeloop.evaluation.lossless.tables import everywhere, sampled_draft
from decodeloop.evaluation.lossless.texts import Effort, check_texts
from decodeloop.speculation import Draft
from decodeloop.speculation.sampling import Distribution
from decodeloop.speculation.verifiers.block import BlockVerifier
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier
from wrong_targets import Simulated

SAMPLED = [RejectionVerifier, BlockVerifier]
P, Q = everywhere(0.5, 0.3, 0.2), everywhere(0.2, 0.3, 0.5)
ASK = Ask(messages=({"role": "user", "content": "x"},), temperature=1.0, max_tokens=3)


def sampled(target, journal, **options):
    settings = {"samples": 600, "length": 3, "arm": Arm.SERVED, "at_once": 1, "alpha": 1e-3, "must_speculate": True}
    return check_distributions(Remembering(target, journal), [ASK], **{**settings, **options})


@pytest.mark.parametrize("verifier", SAMPLED)
@pytest.mark.parametrize("rule", rules.UNSOUND)
def test_an_unsound_way_to_cut_is_caught(rule, verifier, journal):
    shown = rules.INSTANCES[rule]
    target = Simulated(shown.target, lambda dice: rule(dice, shown.q, shown.depth), verifier())
    found = sampled(target, journal)
    assert not found.passed
    assert found.controlled


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_drafter_whose_q_is_not_the_one_it_drew_from_is_caught(verifier, journal):
    reported = np.array([0.5, 0.3, 0.2]) ** 2
    reported /= reported.sum()
    target = Simulated(P, lambda dice: Draft(sampled_draft(dice, P, 2).tokens, (reported,) * 2), verifier())
    assert not sampled(target, journal).passed


class FilterAtTheEnd:
    """The request's filter (here: no token 2) acts on the bonus token alone."""

    def __init__(self, table, tokens):
        self._filtered, self._last = table[()], len(tokens)

    def __getitem__(self, i):
        return self._filtered if i == self._last else Distribution.of(np.array([0.4, 0.3, 0.3]))

    def position(self, i):
        return i


@pytest.mark.parametrize("verifier", SAMPLED)
def test_a_filter_on_the_bonus_token_alone_is_caught(verifier, journal):
    filtered = everywhere(0.57, 0.43, 0.0)
    bare = everywhere(0.4, 0.3, 0.3)
    target = Simulated(filtered, lambda dice: sampled_draft(dice, bare, 1), verifier(), rows=FilterAtTheEnd)
    assert not sampled(target, journal).passed


class HotWhereDrafted:
    """The request's temperature reaches the bonus token alone, whatever stands in memory the rows of the draft."""

    def __init__(self, table, tokens):
        self._cool, self._last = table[()], len(tokens)

    def __getitem__(self, i):
        probs = self._cool.probs**0.1
        return self._cool if i == self._last else Distribution.of(probs / probs.sum())

    def position(self, i):
        return i


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
def test_a_temperature_that_misses_the_rows_of_a_draft_is_caught(verifier, journal):
    """As vLLM's CPU build 0.32 does: greedy answers are right, sampled ones go wrong where a draft was rejected."""
    target = Simulated(P, lambda dice: sampled_draft(dice, Q, 1), verifier(), rows=HotWhereDrafted)
    assert not sampled(target, journal).passed


@dataclass
class WrongAtFirst:
    """Decodes wrongly until so many answers were given, and rightly from then on: undefined memory, say."""

    wrong: Simulated
    right: Simulated
    left: int

    def answers(self, asks, arm, at_once):
        self.left -= len(asks) if arm is not Arm.PLAIN else 0
        return (self.wrong if self.left >= 0 else self.right).answers(asks, arm, at_once)


def test_a_failure_that_is_not_seen_again_is_no_pass(journal):
    wrong, right = (Simulated(P, lambda dice: sampled_draft(dice, Q, 2), v) for v in (Pinned(1.0), RejectionVerifier()))
    found = sampled(WrongAtFirst(wrong, right, 600), journal)
    assert found.passed
    assert found.unsettled
    assert verdict_of([found]) is Verdict.INVALID
    assert "before these were drawn anew" in found.found


@pytest.mark.parametrize("acceptance", [0.5, 1.0])
def test_pinned_acceptance_is_caught(acceptance, journal):
    target = Simulated(P, lambda dice: sampled_draft(dice, Q, 2), Pinned(acceptance))
    assert not sampled(target, journal).passed


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
@pytest.mark.parametrize("rule", [rules.whole, rules.stop_on_max_q])
def test_the_sound_pass(rule, verifier, journal):
    target = Simulated(P, lambda dice: rule(dice, Q, 3), verifier())
    found = sampled(target, journal)
    assert found.passed
    assert found.controlled
    assert not found.idle
    assert not found.unsettled


def test_a_target_that_never_speculates_proves_nothing(journal):
    target = Simulated(P, lambda dice: Draft(), RejectionVerifier())
    assert sampled(target, journal).idle


@pytest.mark.parametrize(("acceptance", "passes"), [(None, True), (1.0, False)])
def test_texts_alone_tell_pinned_acceptance(acceptance, passes, journal):
    verifier = RejectionVerifier() if acceptance is None else Pinned(acceptance)
    target = Simulated(P, lambda dice: sampled_draft(dice, Q, 3), verifier)
    effort = Effort(samples=40, length=6, permutations=1999, rounds=6, alpha=1e-3)
    asks = [replace(ASK, max_tokens=6, messages=({"role": "user", "content": str(i)},)) for i in range(4)]
    found = check_texts(Remembering(target, journal), asks, effort, at_once=1)
    assert found.passed is passes
