"""Divergence, agreement and perplexity of two executions, against their definitions."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax, rel_entr

from decodeloop.evaluation.fidelity import Fidelity, FidelityBounds, Reference


def compare(reference, other, tokens):
    return Reference(reference, tokens).compare(other)


def logits(seed, rows=7, vocab=11, scale=3.0):
    return (np.random.default_rng(seed).standard_normal((rows, vocab)) * scale).astype(np.float32)


@given(st.integers(0, 1000), st.floats(0.0, 3.0))
def test_the_measures_are_those_of_the_definition(seed, noise):
    reference = logits(seed)
    other = reference + np.float32(noise) * logits(seed + 1, scale=1.0)
    tokens = np.random.default_rng(seed).integers(0, 11, 7).tolist()
    p, q = (log_softmax(each.astype(float), axis=-1) for each in (reference, other))
    found = compare(reference, other, tokens)
    np.testing.assert_allclose(found.divergence, rel_entr(np.exp(p), np.exp(q)).sum(-1), atol=1e-12)
    fidelity = Fidelity.of([found])
    said = [math.exp(-np.mean([each[i, tokens[i + 1]] for i in range(6)])) for each in (p, q)]
    assert fidelity.perplexity_ratio == pytest.approx(said[1] / said[0])
    assert fidelity.agreement == np.mean(p.argmax(-1) == q.argmax(-1))
    assert fidelity.positions == 7


def test_texts_count_by_their_positions():
    texts = [compare(logits(i, rows), logits(i + 50, rows), list(range(rows))) for i, rows in enumerate((1, 2, 9))]
    every = np.concatenate([text.divergence for text in texts])
    assert Fidelity.of(texts).divergence == pytest.approx(every.mean())
    assert Fidelity.of(texts).positions == 12


def test_a_forbidden_token_counts_nothing_where_both_forbid_it():
    reference, other = logits(1), logits(2)
    reference[:, 3], other[:, 3] = -np.inf, -np.inf
    whole = compare(np.delete(reference, 3, axis=1), np.delete(other, 3, axis=1), [0] * 7)
    np.testing.assert_allclose(compare(reference, other, [0] * 7).divergence, whole.divergence, atol=1e-12)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"\(7, 11\) and \(7, 10\)"):
        compare(logits(1), logits(1)[:, :10], [0] * 7)
    with pytest.raises(ValueError, match="do not fit 6 tokens"):
        compare(logits(1), logits(1), [0] * 6)
    with pytest.raises(ValueError, match="not of shape"):
        compare(logits(1)[0], logits(1)[0], [0] * 7)


BOUNDS = FidelityBounds(divergence=0.1, divergence_p99=0.5, agreement=0.9, perplexity_ratio=1.05)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({}, []),
        ({"divergence": 0.11}, ["divergence"]),
        ({"divergence": math.nan}, ["divergence"]),
        ({"divergence_p99": 0.6}, ["divergence_p99"]),
        ({"agreement": 0.89}, ["agreement"]),
        ({"perplexity_ratio": 1.06}, ["perplexity_ratio"]),
        ({"perplexity_ratio": 0.94}, ["perplexity_ratio"]),
        ({"perplexity_ratio": math.nan}, ["perplexity_ratio"]),
        ({"divergence": 1.0, "agreement": 0.0}, ["divergence", "agreement"]),
    ],
)
def test_what_is_out_of_bounds_is_named(change, named):
    good = {"divergence": 0.1, "divergence_p99": 0.5, "agreement": 0.9, "perplexity_ratio": 1.05}
    found = Fidelity(positions=10, **{**good, **change})
    assert [line.split()[0] for line in BOUNDS.violations(found)] == named
