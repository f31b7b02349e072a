"""Every policy with every verifier: what it decides to verify, if it is admitted, leaves the law of two texts alone."""

from functools import partial

import numpy as np
import pytest

from decodeloop.evaluation.lossless.decided import decided, open_policy
from decodeloop.evaluation.lossless.joint import LENGTH, joint_distance
from decodeloop.policy import policies
from decodeloop.speculation.verifiers import verifiers
from decodeloop.testing import EXACT, random_table


@pytest.mark.parametrize("verifier", verifiers.names())
@pytest.mark.parametrize("policy", policies.names())
def test_every_policy_with_every_verifier(policy, verifier):
    judge = verifiers.load(verifier)()
    for seed in range(3):
        rng = np.random.default_rng(seed)
        targets, qs = ([random_table(rng, 2, LENGTH + 1) for _ in range(2)] for _ in range(2))
        assert (
            joint_distance(
                judge, targets, qs, partial(decided, fresh=partial(open_policy, policy, judge), verifier=judge)
            )
            < EXACT
        )
