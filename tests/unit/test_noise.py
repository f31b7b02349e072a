"""Noise to the last bit: known answers, the logarithm, screening, and the sampler's own distance from p."""

from decimal import Decimal, getcontext
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation import noise
from decodeloop.speculation.philox import philox, philox_rows
from decodeloop.speculation.sampling import Distribution

WORD = 2**32
words32 = st.integers(0, WORD - 1)
KNOWN = [  # Random123's kat_vectors for philox4x32-10: counter, key, output
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF),
        (0xFFFFFFFF, 0xFFFFFFFF),
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def philox_known(counter, key):
    return next(answer for c, k, answer in KNOWN if (c, k) == (counter, key))


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_philox_known_answers(counter, key, answer):
    assert philox(counter, key) == answer
    assert philox_rows(counter, key).tolist() == list(answer)


@given(st.lists(st.tuples(words32, words32, words32, words32, words32, words32), min_size=1, max_size=5))
def test_many_counters_and_keys_at_once(cases):
    columns = [np.array(column, dtype=np.uint64) for column in zip(*cases, strict=True)]
    got = philox_rows(tuple(columns[:4]), tuple(columns[4:]))
    assert [tuple(row) for row in got.tolist()] == [philox(case[:4], case[4:]) for case in cases]


def test_more_counters_than_a_chunk():
    got = philox_rows((np.arange(20_000), 5, 1, 9), (3, 4))
    for i in (0, 8191, 8192, 16384, 19_999):
        assert tuple(got[i].tolist()) == philox((i, 5, 1, 9), (3, 4))


def test_counters_and_keys_broadcast():
    keys = np.array([[1], [2]]), np.array([[3], [4]])
    got = philox_rows((np.arange(3), 7, 0, 0), keys)
    assert got.shape == (2, 3, 4)
    for (i, key), j in product(enumerate([(1, 3), (2, 4)]), range(3)):
        assert tuple(got[i, j].tolist()) == philox((j, 7, 0, 0), key)


def test_a_token_owns_a_lane_of_a_block():
    key = (11, 12)
    got = noise.words(key, 40, 2, np.array([0, 3, 4, 9, 49_151]))
    assert got.tolist() == [philox((i // 4, 40, 2, 0), key)[i % 4] for i in (0, 3, 4, 9, 49_151)]


@pytest.mark.parametrize("vocab_size", [1, 2, 7, 8, 4096, 4099])
def test_words_of_many_are_the_words_of_each(vocab_size):
    every = noise.words((1, 2), 3, 0, np.arange(vocab_size))
    assert np.array_equal(noise._row_words((1, 2), 3, 0, None, vocab_size), every)
    for share in (1, 2, 9):
        ids = np.arange(0, vocab_size, share)
        assert np.array_equal(noise._row_words((1, 2), 3, 0, ids, vocab_size), every[ids])


# The logarithm and what is made of it, against 50 decimal digits.


def decimal_gumbel(high, low):
    getcontext().prec = 50
    u = (Decimal(high * WORD + low) + Decimal("0.5")) / Decimal(2**64)
    return float(-((-(u.ln())).ln()))


def spread(count, seed):
    """Positive floats over many scales, and around 1."""
    rng = np.random.default_rng(seed)
    wide = rng.random(count) * np.exp2(rng.integers(-66, 8, size=count))
    near = 1.0 + rng.normal(size=count) * np.exp2(rng.integers(-40, -1, size=count).astype(float))
    return np.concatenate((wide, near[near > 0.1], [0.5, 1.0, 2.0, 0.7071067811865476, 0.7071067811865475]))


def test_log():
    getcontext().prec = 50
    x = spread(400, 0)
    exact = [float(Decimal(float(v)).ln()) for v in x]
    assert np.allclose(noise.log(x), exact, rtol=1e-15, atol=0.0)


def test_log_increases():
    x = np.sort(spread(2000, 1))
    assert (np.diff(noise.log(x)) >= 0).all()
    steps = np.nextafter(np.full(1000, 0.7071067811865475), 2.0)
    assert (noise.log(steps) >= noise.log(np.full(1000, 0.7071067811865475))).all()


EDGES = [0, 1, 2**30, 2**31 - 1, 2**31, 3 * 2**30 - 1, 3 * 2**30, WORD - 2, WORD - 1]


@pytest.mark.parametrize(("high", "low"), [*product(EDGES, (0, 1, WORD - 1))])
def test_gumbel_at_the_edges(high, low):
    assert one_gumbel(high, low) == pytest.approx(decimal_gumbel(high, low), rel=1e-14, abs=1e-15)


@given(words32, words32)
@settings(max_examples=300)
def test_gumbel_and_its_bounds(high, low):
    exact = one_gumbel(high, low)
    assert exact == pytest.approx(decimal_gumbel(high, low), rel=1e-14, abs=1e-15)
    assert noise.LOWEST < exact < noise.HIGHEST
    assert noise._least(high) <= exact
    assert exact <= one_bound(high)


@pytest.mark.parametrize("high", EDGES)
@pytest.mark.parametrize("low", [0, WORD - 1])
def test_bounds_at_the_edges(high, low):
    assert noise._least(high) <= one_gumbel(high, low) <= one_bound(high)


def test_bounds_are_tight_in_the_winning_tail():
    for high in range(WORD - 2000, WORD - 10):
        assert one_bound(high) - noise._least(high) < 0.2


def one_gumbel(high, low):
    return float(noise.gumbel(np.array([high], dtype=np.uint32), np.array([low], dtype=np.uint32))[0])


def one_bound(high):
    return float(noise._most(np.zeros(1), np.array([high], dtype=np.uint32))[0])


def test_gumbel_bits():
    """Golden bits, for implementations in other languages."""
    high = np.array([0, 0x12345678, 0x80000000, 0xC0000000, 0xFFFFF000, 0xFFFFFFFF], dtype=np.uint32)
    low = np.array([0, 0x9ABCDEF0, 0x00000001, 0x00000000, 0x0F0F0F0F, 0xFFFFFFFF], dtype=np.uint32)
    assert [value.hex() for value in noise.gumbel(high, low).tolist()] == GOLDEN


GOLDEN = [
    "-0x1.e7686d3aca577p+1",
    "-0x1.f1b82affaaf97p-1",
    "0x1.774f29bdd6ba0p-2",
    "0x1.3ef342116e5cfp+0",
    "0x1.bb9d5909b9bc5p+3",
    "0x1.686fc0af622d7p+5",
]


# Screening: the draw must be the argmax over all scores, evaluated in full.


def full_argmax(p, key, position, domain=0):
    ids = np.arange(p.vocab_size) if p.token_ids is None else p.token_ids
    high, low = (noise.words(key, position, domain + d, ids) for d in range(2))
    return int(ids[(p.log_weights + noise.gumbel(high, low)).argmax()])


@st.composite
def rows(draw):
    """Rows of every kind: flat, peaked, cold, tied, mostly excluded, of a reduced vocabulary."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    vocab_size = draw(st.sampled_from([1, 2, 3, 5, 50, 700]))
    values = rng.normal(size=vocab_size) * draw(st.sampled_from([0.0, 1e-9, 0.1, 1.0, 4.0, 30.0, 1e6]))
    if draw(st.booleans()):
        values = np.round(values)
    values[rng.random(vocab_size) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = -np.inf
    values[rng.integers(vocab_size)] = 0.0
    ids = None
    if draw(st.booleans()):
        ids = np.sort(rng.permutation(vocab_size * 3)[:vocab_size])
    return Distribution(values - values.max(), vocab_size if ids is None else vocab_size * 3, ids)


@given(rows(), st.tuples(words32, words32), words32, st.sampled_from([0, 5]))
@settings(max_examples=600, deadline=None)
def test_screening_changes_nothing(p, key, position, domain):
    assert noise.gumbel_argmax(p, key, position, domain) == full_argmax(p, key, position, domain)


def test_screening_changes_nothing_at_real_sizes():
    rng = np.random.default_rng(0)
    for position, scale in enumerate([0.0, 1.0, 3.0, 6.0]):
        values = scale * rng.normal(size=49_152)
        p = Distribution(values - values.max(), 49_152)
        assert noise.gumbel_argmax(p, (5, 6), position, 0) == full_argmax(p, (5, 6), position)


def test_equal_scores_go_to_the_lowest_id(monkeypatch):
    monkeypatch.setattr(noise, "_row_words", constant_words)
    p = Distribution(np.array([-1.0, 0.0, -2.0, 0.0]), 4)
    assert noise.gumbel_argmax(p, (0, 0), 0, 0) == 1
    assert noise.gumbel_argmax(Distribution(np.zeros(3), 9, np.array([4, 5, 8])), (0, 0), 0, 0) == 4


def constant_words(key, position, domain, ids, vocab_size):
    return np.full(vocab_size if ids is None else len(ids), 0x12345678, dtype=np.uint32)


@pytest.mark.parametrize("high", [7, WORD - 1])
def test_equal_high_words_are_told_apart_by_low_ones_of_their_own(monkeypatch, high):
    words = {0: [high] * 3, 1: [1, WORD - 1, 3]}
    monkeypatch.setattr(noise, "_row_words", lambda key, position, domain, *_: np.array(words[domain], dtype=np.uint32))
    assert noise.gumbel_argmax(Distribution(np.zeros(3), 3), (0, 0), 0, 0) == 1


@pytest.mark.parametrize(("weight", "winner"), [(-48.8, 1), (-48.9, 0)])
def test_the_unlikeliest_token_that_can_win_does(monkeypatch, weight, winner):
    """With the least noise on the likeliest token and the greatest on one that is 48.86 under it."""
    monkeypatch.setattr(noise, "_row_words", lambda *asked: np.array([0, WORD - 1], dtype=np.uint32))
    assert noise.gumbel_argmax(Distribution(np.array([0.0, weight]), 2), (0, 0), 0, 0) == winner


@given(st.integers(0, 2**32), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_a_reduced_vocabulary_has_the_noise_of_the_target_ids(seed, size):
    """The draw from some of the tokens is the draw from all with the others excluded."""
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.permutation(200)[:size])
    values = rng.normal(size=size)
    wide = np.full(200, -np.inf)
    wide[ids] = values
    reduced, full = Distribution(values - values.max(), 200, ids), Distribution(wide - values.max(), 200)
    assert noise.gumbel_argmax(reduced, (1, 2), seed % WORD, 0) == noise.gumbel_argmax(full, (1, 2), seed % WORD, 0)


# The sampler's own distance from p (the docstring of `noise`): the theorem on a grid coarse enough to enumerate.


@pytest.mark.parametrize("p", [[0.5, 0.3, 0.2], [0.98, 0.01, 0.01], [1 / 3, 1 / 3, 1 / 3], [0.7, 0.3, 1e-6]])
@pytest.mark.parametrize("bits", [4, 6])
def test_the_grid_costs_at_most_a_cell_a_token(p, bits):
    """All outcomes of three tokens' noise, each u on a grid of 2^bits: total variation at most V 2^-bits."""
    u = (np.arange(2**bits) + 0.5) / 2**bits
    exponential = -np.log(u)
    scores = [np.log(weight) - np.log(exponential) for weight in p]
    grid = np.stack(np.meshgrid(*scores, indexing="ij"))
    law = np.bincount(grid.argmax(axis=0).reshape(-1), minlength=3) / 2 ** (3 * bits)
    distance = 0.5 * np.abs(law - p).sum()
    assert 0 < distance <= 3 * 2.0**-bits


def test_the_stated_bound_is_what_its_parts_add_up_to():
    """Rounding: G is good to 1e-14 relative (above), scores that can win are under 128; 2d must be under 2^-42."""
    gumbel_error = 45.1 * 4 * 2.0**-52  # relative error of a few units in the last place of the largest G
    sum_error = 128 * 2.0**-53
    weight_error = 2 * 128 * 2.0**-53  # log_weights: a difference and a quotient
    assert gumbel_error + sum_error + weight_error < 2.0**-43
    assert 262_144 * 2.0**-64 + 2.0**-42 < 1e-12
