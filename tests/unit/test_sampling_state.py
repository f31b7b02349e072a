"""SamplingState: what each parameter does to a row, and that advance, rollback and fork leave no trace."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation.sampling import NothingLeft, RequestChance, SamplingState
from decodeloop.types import RequestRefused, SamplingParams

V = 12
EOS, STOP = 11, 10
ROW = np.array([3.0, 2.5, 2.0, 2.0, 1.0, 0.5, 0.0, -0.5, -1.0, -2.0, 1.5, 2.2], dtype=np.float32)


def state(prompt=(), matcher=None, **params):
    return SamplingState(SamplingParams(**params), prompt, vocab_size=V, eos_ids=frozenset({EOS}), matcher=matcher)


def advanced(tokens, prompt=(), **params):
    made = state(prompt, **params)
    for token in tokens:
        made.advance(token)
    return made


def softmax(logits, temperature=1.0):
    weights = np.exp((np.asarray(logits, dtype=np.float64) - np.max(logits)) / temperature)
    return weights / weights.sum()


def kept(distribution):
    return set(np.flatnonzero(distribution.probs).tolist())


class Alternating:
    """A grammar: even, odd, even, ... tokens below EOS; EOS may come after two."""

    def __init__(self, said=()):
        self.said = list(said)

    def allowed(self):
        mask = np.arange(V) % 2 == len(self.said) % 2
        mask[EOS] = len(self.said) >= 2
        return mask & (EOS not in self.said)

    def accept(self, token):
        if not 0 <= token < V or not self.allowed()[token]:
            return False
        self.said.append(token)
        return True

    def rollback(self, count):
        assert 0 < count <= len(self.said)
        del self.said[-count:]

    def fork(self):
        return Alternating(self.said)


# Plain rows.


def test_an_untouched_row_is_its_softmax():
    assert np.allclose(state().distribution(ROW).probs, softmax(ROW), rtol=1e-14)


@pytest.mark.parametrize("token", [-1, -V, V, 99])
def test_ids_outside_the_vocabulary_have_probability_zero(token):
    assert state().distribution(ROW).prob(token) == 0.0
    assert state(top_k=2).distribution(ROW).prob(token) == 0.0


@pytest.mark.parametrize("temperature", [0.3, 0.7, 1.0, 2.0])
def test_temperature(temperature):
    assert np.allclose(state(temperature=temperature).distribution(ROW).probs, softmax(ROW, temperature), rtol=1e-13)


@pytest.mark.parametrize("temperature", [0.0, 1e-30, 1e-4])
def test_cold_is_greedy_ties_to_the_lowest_id(temperature):
    tied = ROW.copy()
    tied[[4, 7]] = 5.0
    for scale in (1.0, 1e30):
        p = state(temperature=temperature).distribution(tied * np.float32(scale))
        assert p.greedy
        assert p.likeliest == 4
        assert p.probs.tolist() == [0.0] * 4 + [1.0] + [0.0] * 7
        assert p.entropy() == 0.0
        assert {RequestChance.of(seed, (), 0).coupled(p, 3) for seed in range(20)} == {4}


def test_barely_warm_does_not_overflow():
    p = state(temperature=1.1e-4).distribution(np.array([3e38, -3e38, *[0.0] * 10], dtype=np.float32))
    assert p.probs[0] == 1.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("params", [{}, {"temperature": 0.0}, {"top_k": 3}, {"presence_penalty": 1.0}])
def test_bad_logits_fail_in_words(bad, params):
    row = ROW.copy()
    row[5] = bad
    with pytest.raises(FloatingPointError, match=f"the model's logits hold {bad}"):
        state(**params).distribution(row)


def test_bad_logits_fail_even_where_banned():
    row = ROW.copy()
    row[5] = np.nan
    with pytest.raises(FloatingPointError, match="nan"):
        state(banned_token_ids=(5,)).distribution(row)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nothing_left_fails_in_words(temperature):
    with pytest.raises(NothingLeft, match="no token is left"):
        state(allowed_token_ids=(3,), banned_token_ids=(3,), temperature=temperature).distribution(ROW)
    with pytest.raises(NothingLeft, match="no token is left"):
        state(temperature=temperature).distribution(np.full(V, -np.inf, dtype=np.float32))


def test_excluded_logits_stay_excluded():
    row = ROW.copy()
    row[:8] = -np.inf
    assert kept(state().distribution(row)) == {8, 9, 10, 11}


# Filters.


def test_top_k_ties_go_to_the_lowest_id():
    assert kept(state(top_k=4).distribution(ROW)) == {0, 1, 11, 2}
    assert kept(state(top_k=5).distribution(ROW)) == {0, 1, 11, 2, 3}
    assert kept(state(top_k=99).distribution(ROW)) == set(range(V))


def test_top_p_is_the_smallest_set_that_reaches_it():
    row = np.full(V, -np.inf, dtype=np.float32)
    row[[2, 5, 7, 9]] = np.log([0.4, 0.3, 0.2, 0.1])
    assert [kept(state(top_p=p).distribution(row)) for p in (0.0, 0.39, 0.41, 0.69, 0.71, 0.89, 0.95)] == [
        {2},
        {2},
        {2, 5},
        {2, 5},
        {2, 5, 7},
        {2, 5, 7},
        {2, 5, 7, 9},
    ]


def test_top_p_that_is_reached_exactly_takes_no_more():
    row = np.full(V, -np.inf, dtype=np.float32)
    row[[3, 8]] = 0.0
    assert kept(state(top_p=0.5).distribution(row)) == {3}


def test_top_p_ties_go_to_the_lowest_id():
    assert kept(state(top_p=0.3).distribution(np.zeros(V, dtype=np.float32))) == {0, 1, 2, 3}


def test_min_p_is_relative_to_the_likeliest():
    row = np.log(np.array([0.5, 0.26, 0.24, *[1e-9] * 9])).astype(np.float32)
    assert kept(state(min_p=0.5).distribution(row)) == {0, 1}
    assert kept(state(min_p=1.0).distribution(row)) == {0}


def test_filters_act_in_order_on_what_is_left():
    """min_p leaves four of equal weight, top_k three of them, top_p half of those three's mass: two."""
    row = np.array([1.0, 1.0, 1.0, 1.0, *[-9.0] * 8], dtype=np.float32)
    assert kept(state(min_p=0.5, top_k=3, top_p=0.5).distribution(row)) == {0, 1}
    assert kept(state(top_p=0.5).distribution(row)) == {0, 1, 2}


def test_temperature_comes_before_the_filters():
    row = np.log(np.array([0.6, 0.3, 0.1, *[1e-12] * 9])).astype(np.float32)
    assert kept(state(top_p=0.85).distribution(row)) == {0, 1}
    assert kept(state(top_p=0.85, temperature=0.5).distribution(row)) == {0, 1}
    assert kept(state(top_p=0.75, temperature=0.5).distribution(row)) == {0}


def filtered_by_definition(logits, params):
    """min_p, top_k and top_p one after the other on sorted lists."""
    p = softmax(logits, params.temperature)
    order = sorted(range(len(p)), key=lambda i: (-p[i], i))
    order = [i for i in order if p[i] >= params.min_p * p[order[0]]]
    order = order[: params.top_k or None]
    total, mass, nucleus = sum(p[i] for i in order), 0.0, []
    for i in order:
        if nucleus and mass >= params.top_p * total:
            break
        nucleus.append(i)
        mass += p[i]
    return set(nucleus if params.top_p < 1.0 else order)


@given(
    st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.5, 1.0, 1.7]),
        top_k=st.sampled_from([0, 1, 3, 50]),
        top_p=st.sampled_from([0.123, 0.5, 0.951, 1.0]),
        min_p=st.sampled_from([0.0, 0.0317, 0.4]),
    ),
    st.integers(0, 2**32),
    st.sampled_from([0.3, 2.0, 8.0]),
)
@settings(max_examples=150, deadline=None)
def test_filters_by_definition(params, seed, scale):
    logits = (scale * np.random.default_rng(seed).normal(size=90)).astype(np.float32)
    made = SamplingState(params, (), vocab_size=90, eos_ids=frozenset())
    assert kept(made.distribution(logits)) == filtered_by_definition(logits, params)


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
