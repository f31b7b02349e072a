import numpy as np
import pytest

from decodeloop.speculation.sampling import Distribution, log_probabilities, top_log_probabilities


def log_softmax(logits):
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - np.log(np.exp(shifted).sum())


@pytest.fixture
def logits():
    return (4 * np.random.default_rng(0).normal(size=5000)).astype(np.float32)


def test_log_probabilities_are_the_raw_log_softmax(logits):
    ids = [0, 17, 4999]
    assert np.allclose(log_probabilities(logits, ids), log_softmax(logits)[ids], atol=1e-6)


def test_the_likeliest_come_first_and_equals_by_id(logits):
    logits[[7, 3, 4000]] = logits.max() + 1
    top = top_log_probabilities(logits, 6)
    assert [token for token, _ in top[:3]] == [3, 7, 4000]
    assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
    expected = log_softmax(logits)
    assert all(value == pytest.approx(expected[token], abs=1e-6) for token, value in top)


def test_many_equals_go_by_id():
    logits = np.random.default_rng(0).integers(0, 3, size=500).astype(np.float32)
    expected = sorted(range(500), key=lambda token: (-logits[token], token))[:300]
    assert [token for token, _ in top_log_probabilities(logits, 300)] == expected


def test_none_are_asked_for(logits):
    assert top_log_probabilities(logits, 0) == []


def test_more_than_there_are():
    assert [token for token, _ in top_log_probabilities(np.array([0.0, 1.0], dtype=np.float32), 5)] == [1, 0]


def test_bad_logits_fail_in_words():
    with pytest.raises(FloatingPointError, match="nan"):
        log_probabilities(np.array([0.0, np.nan], dtype=np.float32), [0])


def test_impossible_tokens_have_minus_infinity():
    assert log_probabilities(np.array([0.0, -np.inf], dtype=np.float32), [1])[0] == -np.inf


@pytest.mark.parametrize("probs", [[1.0, 0.0], [0.5, 0.5], [0.25, 0.25, 0.25, 0.25], [0.7, 0.2, 0.1, 0.0]])
def test_entropy(probs):
    p = np.array(probs)
    expected = -sum(v * np.log(v) for v in probs if v > 0)
    assert Distribution.of(p).entropy() == pytest.approx(expected, abs=1e-5)
