"""SamplingState: penalties, biases, bans and the logit hook."""

import numpy as np
import pytest

from decodeloop.types import RequestRefused
from states import EOS, ROW, STOP, Alternating, V, advanced, kept, softmax, state

# Penalties, bias, bans.


def test_repetition_penalty_divides_what_is_positive_and_multiplies_what_is_negative():
    p = advanced([0, 9], prompt=(8, 8), repetition_penalty=1.5)
    expected = ROW.astype(np.float64)
    expected[0] /= 1.5
    expected[[8, 9]] *= 1.5
    assert np.allclose(p.distribution(ROW).probs, softmax(expected), rtol=1e-13)


def test_presence_and_frequency_count_the_output_only():
    p = advanced([0, 0, 0, 9], prompt=(1, 1), presence_penalty=0.7, frequency_penalty=0.25)
    expected = ROW.astype(np.float64)
    expected[0] -= 0.7 + 3 * 0.25
    expected[9] -= 0.7 + 0.25
    assert np.allclose(p.distribution(ROW).probs, softmax(expected), rtol=1e-13)


def test_penalties_come_in_order():
    p = advanced([0], repetition_penalty=2.0, presence_penalty=1.0)
    expected = ROW.astype(np.float64)
    expected[0] = expected[0] / 2.0 - 1.0
    assert np.allclose(p.distribution(ROW).probs, softmax(expected), rtol=1e-13)


def test_logit_bias_adds():
    p = state(logit_bias=((3, 2.0), (0, -1.5), (3, 0.5)))
    expected = ROW.astype(np.float64)
    expected[3] += 2.5
    expected[0] -= 1.5
    assert np.allclose(p.distribution(ROW).probs, softmax(expected), rtol=1e-13)


def test_allowed_and_banned_ids():
    assert kept(state(allowed_token_ids=(1, 4, 5)).distribution(ROW)) == {1, 4, 5}
    assert kept(state(banned_token_ids=(0, 11)).distribution(ROW)) == set(range(1, 11))
    assert kept(state(allowed_token_ids=(1, 4, 5), banned_token_ids=(4,)).distribution(ROW)) == {1, 5}


@pytest.mark.parametrize("token", [-1, V])
@pytest.mark.parametrize("param", ["logit_bias", "allowed_token_ids", "banned_token_ids"])
def test_an_id_outside_the_vocabulary_is_refused_with_its_parameter(param, token):
    value = ((token, 1.0),) if param == "logit_bias" else (token,)
    with pytest.raises(RequestRefused, match=rf"{param}: token id {token} is not in 0\.\.11") as refused:
        state(**{param: value})
    assert refused.value.param == param
    assert refused.value.status == 400


def test_min_tokens_bans_what_would_end_before_exactly_that_many():
    made = state(min_tokens=3, stop_token_ids=(STOP,))
    for count in range(5):
        ended = {EOS, STOP} & kept(made.distribution(ROW))
        assert ended == (set() if count < 3 else {EOS, STOP})
        made.advance(0)


def test_min_tokens_leaves_an_ignored_eos_alone():
    made = state(min_tokens=3, ignore_eos=True, stop_token_ids=(STOP,))
    assert {EOS, STOP} & kept(made.distribution(ROW)) == {EOS}
    assert made.ends(STOP)
    assert not made.ends(EOS)


def test_stop_ids_outside_the_vocabulary_are_harmless():
    assert kept(state(min_tokens=3, stop_token_ids=(99, -4)).distribution(ROW)) == set(range(V)) - {EOS}


# The logit hook.


def test_the_hook_sees_the_text_so_far_and_every_row():
    seen = []

    def hook(tokens, row):
        seen.append((tuple(tokens), len(row)))
        return row

    made = advanced([4], prompt=(1, 2), logit_hook=hook)
    made.distribution(ROW)
    made.advance(5)
    made.distribution(ROW)
    assert seen == [((1, 2, 4), V), ((1, 2, 4, 5), V)]


def test_the_hook_cannot_bring_back_what_is_excluded():
    made = state(logit_hook=lambda tokens, row: np.full(V, 9.0), banned_token_ids=(4,), matcher=Alternating())
    assert kept(made.distribution(ROW)) == {0, 2, 6, 8, 10}


def test_the_hook_may_reuse_its_array():
    shared = np.zeros(V)
    made = state(logit_hook=lambda tokens, row: shared, banned_token_ids=(4,))
    made.distribution(ROW)
    assert not shared.any()


def test_a_faulty_hook_fails_in_words():
    with pytest.raises(ValueError, match="logit_hook returned shape"):
        state(logit_hook=lambda tokens, row: row[:3]).distribution(ROW)
    with pytest.raises(FloatingPointError, match="logit_hook returned NaN"):
        state(logit_hook=lambda tokens, row: row * np.nan).distribution(ROW)


def test_rows_are_not_changed():
    row = ROW.copy()
    made = advanced(
        [0], matcher=None, repetition_penalty=2.0, logit_bias=((1, 3.0),), banned_token_ids=(2,), top_k=3, min_tokens=4
    )
    made.distribution(row)
    state(temperature=0.0).distribution(row)
    assert np.array_equal(row, ROW)
