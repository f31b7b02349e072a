"""Drafts that exist before the plan: what a policy may do with them, and what it may not."""

from dataclasses import replace

import numpy as np
import pytest

from decodeloop.evaluation.lossless.decided import open_policy, request, scored
from decodeloop.evaluation.lossless.joint import LENGTH, joint_distance
from decodeloop.policy import policies
from decodeloop.speculation import Draft, DraftBlock
from decodeloop.speculation.admission import refuse_anticipation, refuse_inadmissible
from decodeloop.speculation.verifiers import verifiers
from decodeloop.testing import EXACT, random_table
from decodeloop.types import Load

NAMES = ("a", "b")


def decided(requests, drafts_of, policy, verifier, seen):
    """As the engine does it. drafts_of: per request, drafter -> its draft."""
    plan = policy.plan(Load(running=2, waiting=0, context_tokens=200, kv_free_fraction=1.0), requests)
    drafts = [
        Draft() if name is None else own[name].cut(length)
        for own, name, length in zip(drafts_of, plan.drafters, plan.draft_lens, strict=True)
    ]
    scores = DraftBlock(tuple(drafts)).scores()
    refuse_inadmissible(verifier, drafts, scores)
    decision = policy.allocate(plan, scores)
    refuse_anticipation(verifier, drafts, decision)
    seen.add((plan.drafters, decision.verify_lens))
    return [draft.cut(length) for draft, length in zip(drafts, decision.verify_lens, strict=True)]


def tables(seed):
    rng = np.random.default_rng(seed)
    return ([random_table(rng, 2, LENGTH + 1) for _ in range(2)] for _ in range(2))


@pytest.mark.parametrize("verifier", verifiers.names())
@pytest.mark.parametrize("name", [name for name in policies.names() if name not in ("off", "reference")])
def test_point_masses_may_be_known_to_the_plan(name, verifier):
    """One request can copy and says so, the other can't; both have a drafter that samples."""
    judge, seen = verifiers.load(verifier)(), set()
    for seed, confidence in enumerate([(0.9, 0.8), (0.6, 0.3), (0.1, 0.05), ()]):
        copied = Draft((1, 0)[: len(confidence)], None, confidence, drafter="copy")
        asking = [
            replace(request("a"), drafters=("copy", "draft_model"), proposals={"copy": confidence}),
            replace(request("b"), drafters=("copy", "draft_model"), proposals={"copy": ()}),
        ]

        def submit(sampled, asking=asking, copied=copied):
            own = [{"copy": said, "draft_model": scored(d)} for said, d in zip((copied, Draft()), sampled, strict=True)]
            return decided(asking, own, open_policy(name, judge), judge, seen)

        targets, qs = tables(seed)
        assert joint_distance(judge, targets, qs, submit) < EXACT
    assert len(seen) > 1 or name == "fixed"


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_sampled_drafts_may_not(verifier):
    """The negative control: told what the sampled tokens' own q are, the same policy changes the law."""
    judge, seen = verifiers.load(verifier)(), set()

    def submit(sampled):
        own = [np.cumprod([row[t] for row, t in zip(d.q, d.tokens, strict=True)]) for d in sampled]
        asking = [
            replace(request(n), proposals={"draft_model": said.tolist()}) for n, said in zip(NAMES, own, strict=True)
        ]
        leaked = [
            replace(d, confidence=tuple(said), drafter="draft_model") for d, said in zip(sampled, own, strict=True)
        ]
        return decided(asking, [{"draft_model": d} for d in leaked], open_policy("throughput", judge), judge, seen)

    distances = []
    for seed in range(4):
        targets, qs = tables(seed)
        distances.append(joint_distance(judge, targets, qs, submit))
    assert max(distances) > 0.01
    assert len(seen) > 1
