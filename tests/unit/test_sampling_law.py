"""The sampler's law over seeds, and the independence of its draws: what makes plain decoding follow p.

20,000 fixed requests, so nothing here is flaky; alpha is 1e-6, and each test has a control that it must catch.
"""

from functools import cache

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

from decodeloop.speculation import noise
from decodeloop.speculation.chance import Domain
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.types import SamplingParams

REQUESTS = 20_000
ALPHA = 1e-6
PROMPT = (5, 1, 4)
LOGITS = np.array([1.0, 0.7, 0.2, 0.0, -0.5, -1.0, -1.5, -3.0], dtype=np.float32)
V = len(LOGITS)


@cache
def keys(choice=0, prompt=PROMPT, first_seed=0):
    """[2, REQUESTS] key words of as many seeds."""
    found = [RequestChance.of(first_seed + seed, prompt, choice).key for seed in range(REQUESTS)]
    return np.array(found, dtype=np.uint64).T


@cache
def drawn(position=100, choice=0, prompt=PROMPT, first_seed=0):
    """[REQUESTS] the coupled token of every seed: the definition, for many keys at once."""
    k0, k1 = (word[:, None] for word in keys(choice, prompt, first_seed))
    high, low = (noise.words((k0, k1), position, domain, np.arange(V)) for domain in range(2))
    return (row().log_weights + noise.gumbel(high, low)).argmax(axis=1)


def row(**params):
    state = SamplingState(SamplingParams(**params), PROMPT, vocab_size=V, eos_ids=frozenset())
    return state.distribution(LOGITS)


def law_p_value(tokens, p):
    seen, expected = np.bincount(tokens, minlength=V), len(tokens) * p
    assert (seen[expected == 0] == 0).all()
    kept = expected > 0
    statistic = ((seen[kept] - expected[kept]) ** 2 / expected[kept]).sum()
    return chi2.sf(statistic, kept.sum() - 1)


def pair_p_value(one, other):
    table = np.zeros((V, V))
    np.add.at(table, (one, other), 1)
    return chi2_contingency(table[table.sum(axis=1) > 0][:, table.sum(axis=0) > 0]).pvalue


def test_the_definition_is_what_is_shipped():
    chances = [RequestChance.of(seed, PROMPT, 0) for seed in range(300)]
    assert [chance.coupled(row(), 100) for chance in chances] == drawn()[:300].tolist()


@pytest.mark.parametrize("position", [0, 3, 100, 100_000])
def test_coupled_draws_follow_p(position):
    assert law_p_value(drawn(position), row().probs) > ALPHA


def test_a_law_that_is_off_is_seen():
    """Total variation 0.03."""
    p = row().probs
    off = p + 0.03 * (np.arange(V) == 0) - 0.03 * (np.arange(V) == 1)
    assert law_p_value(drawn(), off) < ALPHA
    assert law_p_value(drawn(), row(temperature=1.15).probs) < ALPHA


SHIPPED = {
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.2},
    "temperature": {"temperature": 0.6},
    "bias": {"logit_bias": ((7, 3.0),)},
}


@pytest.mark.parametrize("asked", SHIPPED)
def test_filtered_draws_follow_p(asked):
    """Through RequestChance itself, on rows of a few tokens, which take other ways through the code."""
    p = row(**SHIPPED[asked])
    tokens = np.array([chance.coupled(p, 7) for chance in few_chances()])
    assert law_p_value(tokens, p.probs) > ALPHA


PAIRS = {
    "positions": ({}, {"position": 101}),
    "far positions": ({}, {"position": 100 + 2**16}),
    "seeds": ({}, {"first_seed": 1}),
    "choices": ({}, {"choice": 1}),
    "prompts": ({}, {"prompt": (5, 1, 3)}),
    "a continuation": ({}, {"prompt": (*PROMPT, 2)}),
    "choice against position": ({"choice": 1}, {"position": 101}),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_draws_are_independent(pair):
    one, other = PAIRS[pair]
    assert pair_p_value(drawn(**one), drawn(**other)) > ALPHA


def test_dependence_is_seen():
    """One draw in ten copied."""
    copied = drawn(position=101).copy()
    copied[::10] = drawn()[::10]
    assert pair_p_value(drawn(), copied) < ALPHA


# The other draws of a request.


def few_chances(count=2000):
    return [RequestChance(key) for key, _ in zip(zip(*keys().tolist(), strict=True), range(count), strict=False)]


@pytest.mark.parametrize("draw", ["draw", "draft"])
def test_recovered_and_draft_tokens_follow_their_law(draw):
    p = row()
    tokens = [chance.draw(p.probs, 9, 8) if draw == "draw" else chance.draft(p, 9, 8) for chance in few_chances()]
    assert law_p_value(np.array(tokens), p.probs) > ALPHA


@pytest.mark.parametrize("probability", [0.0, 0.02, 0.5, 0.97, 1.0])
def test_coins(probability):
    heads = sum(chance.accept(probability, 9, 8) for chance in few_chances())
    deviation = np.sqrt(2000 * probability * (1 - probability))
    assert abs(heads - 2000 * probability) <= 5 * deviation


def test_a_requests_draws_do_not_know_each_other():
    """Coupled token, coin, recovered token and draft at one position; and each again in the next block."""
    p = row()
    draws = {
        "coupled": [chance.coupled(p, 9) for chance in few_chances()],
        "coin": [int(chance.accept(0.5, 9, 8)) for chance in few_chances()],
        "coin of the next block": [int(chance.accept(0.5, 9, 9)) for chance in few_chances()],
        "drawn": [chance.draw(p.probs, 9, 8) for chance in few_chances()],
        "draft": [chance.draft(p, 9, 8) for chance in few_chances()],
        "draft of the next block": [chance.draft(p, 9, 9) for chance in few_chances()],
    }
    names = list(draws)
    for i, one in enumerate(names):
        for other in names[i + 1 :]:
            assert pair_p_value(draws[one], draws[other]) > ALPHA, (one, other)


def test_domains_share_no_counter():
    assert len({*Domain}) == len(Domain)
    assert Domain.COUPLED_LOW == Domain.COUPLED + 1


def test_three_near_equal_tokens_all_show():
    logits = np.array([0.01, 0.0, -0.01, -50.0], dtype=np.float32)
    state = SamplingState(SamplingParams(), PROMPT, vocab_size=4, eos_ids=frozenset())
    chance = RequestChance.of(0, PROMPT, 0)
    counts = np.bincount([chance.coupled(state.distribution(logits), t) for t in range(300)], minlength=4)
    assert (counts[:3] > 60).all()
    assert counts[3] == 0
