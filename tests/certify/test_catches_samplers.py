"""What is caught in samplers."""

from dataclasses import replace

import numpy as np
import pytest

from decodeloop.evaluation.lossless.sampler import Row, check_sampler, drawing
from decodeloop.speculation.sampling import Distribution
from decodeloop.speculation.verifiers.block import BlockVerifier
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.speculation.verifiers.rejection import RejectionVerifier

SAMPLED = [RejectionVerifier, BlockVerifier]


def rows():
    rng = np.random.default_rng(0)
    return [Row((1, 2, i), Distribution.of(rng.dirichlet(np.ones(60) * 0.3))) for i in range(2)]


@pytest.mark.parametrize("verifier", [*SAMPLED, CoupledVerifier])
def test_the_shipped_samplers_follow_p(verifier):
    found = check_sampler(drawing(verifier()), rows(), draws=1500, alpha=1e-3)
    assert found.passed
    assert found.controlled


def warm(row):
    return replace(row, p=Distribution(row.p.log_weights * 0.8, row.p.vocab_size))


@pytest.mark.parametrize(
    "draw",
    [
        lambda row, asked: drawing(CoupledVerifier())(warm(row), asked),
        lambda row, asked: drawing(CoupledVerifier())(row, [(chance, 7) for chance, _ in asked]),
        lambda row, asked: drawing(CoupledVerifier())(
            row, [(asked[i - i % 2][0], at) for i, (_, at) in enumerate(asked)]
        ),
    ],
    ids=["another temperature", "noise that forgets the position", "noise that forgets seeds"],
)
def test_a_wrong_sampler_fails(draw):
    assert not check_sampler(draw, rows(), draws=1500, alpha=1e-3).passed
