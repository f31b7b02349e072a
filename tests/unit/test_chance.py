import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.speculation.chance import _inverse
from decodeloop.speculation.sampling import Distribution, RequestChance

FLAT = Distribution(np.zeros(1000), 1000)


def text(seed, prompt, choice):
    chance = RequestChance.of(seed, prompt, choice)
    return [chance.coupled(FLAT, position) for position in range(4)]


def test_a_request_is_repeated_exactly():
    assert text(7, [1, 2], 0) == text(7, (1, 2), 0)


def test_seed_prompt_and_choice_each_matter():
    cases = [(7, [1, 2], 0), (8, [1, 2], 0), (7, [1, 2], 1), (7, [2, 1], 0), (7, [1], 0), (7, [], 0), (7, [0], 0)]
    assert len({tuple(text(*case)) for case in cases}) == len(cases)


def test_choice_and_prompt_cannot_be_mistaken_for_each_other():
    assert RequestChance.of(1, [2], 0).key != RequestChance.of(1, [], 2).key
    assert RequestChance.of(1 + (2 << 40), [], 0).key != RequestChance.of(1, [], 2 << 40).key


def test_key_bits():
    """Golden: a served answer can be replayed by a later version."""
    assert RequestChance.of(2**53 - 1, [1, 49_151], 3).key == GOLDEN_KEY
    assert text(0, [1, 2, 3], 0) == GOLDEN_TEXT


GOLDEN_KEY = (695115098, 3612845988)
GOLDEN_TEXT = [530, 736, 690, 275]


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range_is_refused(seed):
    with pytest.raises(ValueError, match=f"seed {seed} is not in"):
        RequestChance.of(seed, [1], 0)


def test_certain_coins():
    chances = [RequestChance.of(seed, [], 0) for seed in range(200)]
    assert all(chance.accept(1.0, 3, 0) and chance.accept(1.5, 3, 0) for chance in chances)
    assert not any(chance.accept(0.0, 3, 0) for chance in chances)


def test_a_certain_coin_survives_rounding(monkeypatch):
    """64 random bits can round up to 1."""
    monkeypatch.setattr(RequestChance, "_uniform", lambda *asked: 1.0)
    assert RequestChance.of(1, [], 0).accept(1.0, 3, 0)


@given(st.lists(st.sampled_from([0.0, 1e-300, 1e-17, 0.1, 0.5]), min_size=1, max_size=6), st.floats(0.0, 1.0))
def test_a_token_of_probability_zero_is_never_drawn(weights, uniform):
    probs = np.array([*weights, 1e-9])
    token = _inverse(probs / probs.sum(), uniform)
    assert probs[token] > 0


@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1.0, 0.0), 1.0])
def test_the_ends_of_the_unit_interval(uniform):
    probs = np.array([0.0, 0.5, 0.5, 0.0])
    assert _inverse(probs, uniform) == (1 if uniform == 0.0 else 2)


def test_a_point_mass_needs_no_noise():
    chance = RequestChance.of(1, [], 0)
    assert chance.coupled(Distribution.point(42, 100), 0) == 42
    assert chance.draft(Distribution.point(42, 100), 0, 0) == 42
