"""The two forms in which sampled drafts may be cut under rejection and block: exact, and not by doing nothing."""

from functools import partial

import numpy as np
import pytest

from decodeloop.evaluation.lossless.decided import Staircase, request, scored
from decodeloop.evaluation.lossless.joint import LENGTH, joint_distance
from decodeloop.policy import PolicySettings, non_anticipating, policies
from decodeloop.policy.non_anticipating import Yardstick, bound_rows
from decodeloop.speculation.verifiers import verifiers
from decodeloop.testing import EXACT, random_table
from decodeloop.types import Knowledge, Load, Scores

BOTH = np.array([True, True])


def survival(drafts):
    return np.array([scored(draft).confidence for draft in drafts])


def cut_by(yardstick, knowledge, seen, drafts):
    lens = yardstick.cut(survival(drafts), np.full(len(drafts), LENGTH), knowledge)
    seen.add(tuple(lens.tolist()))
    return [draft.cut(length) for draft, length in zip(drafts, lens.tolist(), strict=True)]


def unrestricted(seen, drafts):
    """What the policy would do if nobody minded: the best of all lengths, given this step's scores."""
    settings = PolicySettings(LENGTH, verifier_admits=Knowledge.SELF)
    policy = policies.load("throughput")(settings, Staircase())
    plan = policy.plan(Load(2, 0, 200, 1.0), [request("a"), request("b")])
    own = [np.cumprod([row[token] for row, token in zip(d.q, d.tokens, strict=True)]) for d in drafts]
    lens = policy.allocate(plan, Scores(tuple(own), Knowledge.SELF)).verify_lens
    seen.add(lens)
    return [draft.cut(length) for draft, length in zip(drafts, lens, strict=True)]


def distances(verifier, submit, seeds=range(4)):
    for seed in seeds:
        rng = np.random.default_rng(seed)
        targets, qs = ([random_table(rng, 2, LENGTH + 1) for _ in range(2)] for _ in range(2))
        yield joint_distance(verifiers.load(verifier)(), targets, qs, submit)


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize(
    ("many", "yardstick"),
    [(99, Yardstick(BOTH, np.array([1, 2]), 0.55, 2)), (1, Yardstick(BOTH, np.array([1, 2]), 0.55, 2))],
    ids=["stale price", "stale quantity"],
)
def test_legal_forms_leave_the_law_alone(verifier, many, yardstick, monkeypatch):
    monkeypatch.setattr(non_anticipating, "MANY", many)
    seen = set()
    assert max(distances(verifier, partial(cut_by, yardstick, Knowledge.PREFIX, seen))) < EXACT
    assert len(seen) > 1


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_scores_that_know_too_much_are_not_looked_at(verifier):
    seen = set()
    yardstick = Yardstick(BOTH, np.array([1, 2]), 0.55, 3)
    assert max(distances(verifier, partial(cut_by, yardstick, Knowledge.SELF, seen))) < EXACT
    assert seen == {(1, 2)}


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_the_best_of_all_lengths_would_not(verifier):
    """The negative control: these tests can fail."""
    seen = set()
    assert max(distances(verifier, partial(unrestricted, seen))) > 0.01
    assert len(seen) > 1


def test_only_sampled_drafts_under_a_particular_verifier_are_bound():
    drafters = [None, "ngram", "draft_model"]
    assert bound_rows(drafters, Knowledge.PREFIX, {"ngram"}).tolist() == [False, False, True]
    assert not bound_rows(drafters, Knowledge.SELF, {"ngram"}).any()
