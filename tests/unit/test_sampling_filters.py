"""SamplingState: plain rows, temperature, and what min-p, top-k and top-p leave."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation.sampling import NothingLeft, RequestChance, SamplingState
from decodeloop.types import SamplingParams
from states import ROW, V, kept, softmax, state

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
