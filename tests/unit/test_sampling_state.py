"""SamplingState: grammars, reduced vocabularies, and that advance, rollback and fork leave no trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation.sampling import NothingLeft, RequestChance
from states import EOS, ROW, STOP, Alternating, V, advanced, kept, state

# Grammar.


def test_the_grammar_masks_every_row():
    made = state(matcher=Alternating())
    assert kept(made.distribution(ROW)) == {0, 2, 4, 6, 8, 10}
    made.advance(2)
    assert kept(made.distribution(ROW)) == {1, 3, 5, 7, 9}


def test_a_forbidden_token_is_dead_until_rolled_back():
    made = state(matcher=Alternating())
    made.advance(2)
    made.advance(4)
    made.advance(5)
    assert made.dead
    with pytest.raises(RuntimeError, match="roll back first"):
        made.distribution(ROW)
    made.rollback(1)
    assert made.dead
    made.rollback(1)
    assert not made.dead
    assert kept(made.distribution(ROW)) == {1, 3, 5, 7, 9}


def test_behind_the_end_of_the_text_nothing_is_constrained():
    """What a draft holds there is thrown away, but its rows may be asked for."""
    made = state(matcher=Alternating())
    for token in (2, 3, EOS):
        made.advance(token)
    assert not made.dead
    assert kept(made.distribution(ROW)) == set(range(V))
    made.advance(4)
    made.rollback(1)
    assert kept(made.distribution(ROW)) == set(range(V))
    made.rollback(1)
    assert kept(made.distribution(ROW)) == {0, 2, 4, 6, 8, 10, EOS}


def test_an_ignored_eos_still_ends_the_grammar():
    made = state(matcher=Alternating(), ignore_eos=True)
    for token in (2, 3, EOS, 4):
        made.advance(token)
    assert not made.dead
    assert kept(made.distribution(ROW)) == set(range(V))


def test_a_stop_id_ends_the_text_for_the_grammar_too():
    made = state(matcher=Alternating(), stop_token_ids=(2,))
    made.advance(2)
    assert kept(made.distribution(ROW)) == set(range(V))


def test_a_grammar_that_ends_before_min_tokens_fails_in_words():
    class Over(Alternating):
        def allowed(self):
            return np.arange(V) == EOS

    with pytest.raises(NothingLeft, match="min_tokens"):
        state(matcher=Over(), min_tokens=1).distribution(ROW)


# Reduced vocabularies.


@given(st.integers(0, 2**32), st.integers(1, V))
@settings(max_examples=60, deadline=None)
def test_a_reduced_row_is_the_full_row_without_the_rest(seed, size):
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.permutation(V)[:size])
    full = np.full(V, -np.inf, dtype=np.float32)
    full[ids] = ROW[ids]
    params = {
        "repetition_penalty": 1.4,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.3,
        "logit_bias": ((3, 1.0), (7, -1.0)),
        "banned_token_ids": (6,),
        "min_tokens": 9,
        "top_k": 4,
    }
    made = advanced(rng.integers(0, V, 5).tolist(), prompt=(1, 2), **params)
    try:
        expected = made.distribution(full)
    except NothingLeft:
        with pytest.raises(NothingLeft):
            made.distribution(ROW[ids], ids)
        return
    got = made.distribution(ROW[ids], ids)
    assert np.allclose(got.probs, expected.probs, rtol=1e-14)
    assert [got.prob(token) for token in range(-1, V + 1)] == [0.0, *got.probs.tolist(), 0.0]
    chance = RequestChance.of(seed, (), 0)
    assert chance.coupled(got, 5) == chance.coupled(expected, 5)


def test_a_greedy_reduced_row_gives_a_target_id():
    ids = np.array([4, 7, 9])
    assert state(temperature=0.0).distribution(np.array([0.0, 2.0, 2.0], dtype=np.float32), ids).likeliest == 7


# Advance, rollback, fork.

PARAMS = [
    {},
    {"repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 0.8},
    {"min_tokens": 3, "stop_token_ids": (STOP,)},
    {"repetition_penalty": 1.3, "min_tokens": 2, "temperature": 0.0},
]
moves = st.lists(
    st.one_of(
        st.tuples(st.just("advance"), st.integers(0, V - 1)),
        st.tuples(st.just("rollback"), st.integers(1, 5)),
        st.tuples(st.just("fork"), st.integers(0, V - 1)),
    ),
    max_size=25,
)


@given(st.sampled_from(PARAMS), st.booleans(), moves)
@settings(max_examples=200, deadline=None)
def test_a_state_is_a_function_of_its_tokens(params, grammar, steps):
    """After any walk it gives what a fresh state gives that was advanced over the same tokens."""
    made, tokens = state((1, 2, 2), Alternating() if grammar else None, **params), []
    for move, value in steps:
        if move == "advance":
            made.advance(value)
            tokens.append(value)
        elif move == "rollback":
            count = min(value, len(tokens))
            made.rollback(count)
            del tokens[len(tokens) - count :]
        else:
            twin = made.fork()
            twin.advance(value)
            twin.advance(value)
            twin.rollback(1)
            agree(twin, [*tokens, value], params, grammar)
    agree(made, tokens, params, grammar)


def agree(made, tokens, params, grammar):
    fresh = state((1, 2, 2), Alternating() if grammar else None, **params)
    for token in tokens:
        fresh.advance(token)
    assert (made.output_len, made.dead) == (len(tokens), fresh.dead)
    if not made.dead:
        assert row_or_error(made) == row_or_error(fresh)


def row_or_error(made):
    try:
        return made.distribution(ROW).probs.tolist()
    except NothingLeft as error:
        return str(error)


def test_rolling_back_more_than_there_is_is_an_error():
    made = advanced([1, 2])
    with pytest.raises(ValueError, match="cannot roll back 3 of 2"):
        made.rollback(3)
    with pytest.raises(ValueError, match="cannot roll back -1"):
        made.rollback(-1)
    made.rollback(0)
    assert made.output_len == 2
