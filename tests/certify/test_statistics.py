"""The tests behind certificates, on synthetic truth: what they state about errors and power holds in simulation."""

from collections import Counter

import numpy as np
import pytest
from scipy import stats

from decodeloop.evaluation.lossless import contingency, identity, mmd, tails
from decodeloop.evaluation.lossless.outcome import Check, Control, Power, Verdict, verdict_of

UNLIKELY = 1e-4  # of a simulation's own verdict to be wrong


def at_most(failures, runs, rate):
    """Whether so many failures are what a rate of at most `rate` gives, by a binomial bound."""
    return failures <= stats.binom.ppf(1 - UNLIKELY, runs, rate)


def at_least(caught, runs, power):
    return caught >= stats.binom.ppf(UNLIKELY, runs, power)


@pytest.mark.parametrize("df", [1, 2, 7, 40, 160, 901])
def test_chi_squared_tails(df):
    for x in (0.0, 0.3 * df, df, df + 3 * np.sqrt(2 * df), df + 12 * np.sqrt(2 * df)):
        assert tails.chi2_tail(x, df) == pytest.approx(stats.chi2.sf(x, df), rel=1e-9, abs=1e-300)
        for shift in (0.5, 30.0, 400.0):
            assert tails.chi2_tail(x, df, shift) == pytest.approx(stats.ncx2.sf(x, df, shift), rel=1e-6, abs=1e-12)
    for alpha in (0.05, 1e-6):
        assert tails.chi2_critical(alpha, df) == pytest.approx(stats.chi2.isf(alpha, df), rel=1e-8)


@pytest.mark.parametrize(("n", "p"), [(1, 0.5), (20, 0.01), (200, 0.3), (200, 0.0), (200, 1.0)])
def test_binomial_tails(n, p):
    assert tails.binomial_pmf(n, p) == pytest.approx(stats.binom.pmf(np.arange(n + 1), n, p), abs=1e-12)
    for k in (0, 1, n // 2, n):
        assert tails.binomial_tail(k, n, p) == pytest.approx(stats.binom.sf(k - 1, n, p), abs=1e-12)
        exact = stats.binomtest(k, n).proportion_ci(0.9, "exact")
        assert tails.share_below(k, n, 0.95) == pytest.approx(exact.high, abs=1e-8)
        assert tails.share_above(k, n, 0.95) == pytest.approx(exact.low, abs=1e-8)


def test_the_published_power():
    """alpha 1e-6, 40 cells, 20,000 samples: .99 at a total variation of .037."""
    found = contingency.detectable(20_000, groups=1, alpha=1e-6, power=0.99, two_samples=False, cells=40)
    assert found == pytest.approx(0.037, abs=0.002)


def counts(rng, law, size):
    return Counter(dict(enumerate(rng.multinomial(size, law).tolist())))


ZIPF = 1 / np.arange(1, 301) / (1 / np.arange(1, 301)).sum()


@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_a_law_that_is_followed_fails_as_rarely_as_stated(alpha):
    rng = np.random.default_rng(1)
    law = dict(enumerate(ZIPF.tolist()))
    runs = 400
    one = [contingency.against_law([(counts(rng, ZIPF, 1500), law)] * 1).p_value for _ in range(runs)]
    two = [
        contingency.against_each_other([(counts(rng, ZIPF, 700), counts(rng, ZIPF, 700)) for _ in range(2)]).p_value
        for _ in range(runs)
    ]
    for found in (one, two):
        assert at_most(sum(p < alpha for p in found), runs, 1.1 * alpha)  # a tenth for the approximation
        assert np.mean(found) == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("two_samples", [False, True])
def test_the_stated_deviation_is_caught_as_often_as_stated(two_samples):
    """In the case hardest to see: every cell off by the same share, half of them up and half down."""
    rng = np.random.default_rng(2)
    alpha, power, samples, cells = 0.01, 0.9, 2500, 40
    size = contingency.detectable(samples, groups=2, alpha=alpha, power=power, two_samples=two_samples, cells=cells)
    law = np.full(cells + 1, 1 / (cells + 1))
    tilt = np.where(np.arange(cells + 1) % 2, 1, -1) * np.where(np.arange(cells + 1) < cells, 1, 0)
    off = law * (1 + tilt * 2 * size * (cells + 1) / cells)
    off /= off.sum()
    assert 0.5 * np.abs(off - law).sum() == pytest.approx(size, rel=0.05)
    caught, runs = 0, 150
    exact = dict(enumerate(law.tolist()))
    for _ in range(runs):
        groups = [(counts(rng, off, samples), counts(rng, law, samples)) for _ in range(2)]
        found = (
            contingency.against_each_other(groups, cells=cells)
            if two_samples
            else contingency.against_law([(said, exact) for said, _ in groups], cells=cells)
        )
        caught += found.p_value < alpha
    assert at_least(caught, runs, power)


def test_what_has_no_probability_is_a_failure():
    assert contingency.against_law([(Counter({1: 99, 2: 1}), {1: 1.0})]).p_value == 0.0
    assert contingency.against_law([(Counter({1: 100}), {1: 1.0})]).p_value == 1.0


def noisy(rng, answers, floor, excess=0.0):
    """[plain, again, speculative] of one token each; which questions are shaky is shared by both."""
    shaky = rng.random(answers) < 2 * floor
    again = shaky & (rng.random(answers) < 0.5)
    changed = (shaky & (rng.random(answers) < 0.5)) | (rng.random(answers) < excess)
    return [[(0,)] * answers, [(int(x),) for x in again], [(2 * int(x),) for x in changed]]


@pytest.mark.parametrize("floor", [0.0, 0.02, 0.3])
def test_noise_is_no_deviation(floor):
    rng = np.random.default_rng(3)
    runs, alpha = 200, 0.05
    found = [identity.compare(*noisy(rng, 60, floor)) for _ in range(runs)]
    assert at_most(sum(one.p_value < alpha for one in found), runs, alpha)
    assert at_most(sum(one.excess_below < 0.0 for one in found), runs, 0.05)


@pytest.mark.parametrize("floor", [0.0, 0.05, 0.3])
def test_the_stated_excess_is_caught(floor):
    rng = np.random.default_rng(4)
    alpha, power, answers, runs = 0.01, 0.9, 80, 150
    excess = identity.detectable_excess(answers, floor, alpha=alpha, power=power)
    assert excess < 0.5
    found = []
    for _ in range(runs):
        plain, again, _ = ([(0,)] * answers, [(int(x),) for x in rng.random(answers) < floor], None)
        changed = [(2 * int(x),) for x in rng.random(answers) < floor + excess]
        found.append(identity.compare(plain, again, changed))
    assert at_least(sum(one.p_value <= alpha for one in found), runs, power)
    assert at_most(sum(one.excess_below < excess for one in found), runs, 0.05)


def test_where_nothing_may_differ_a_share_is_caught_as_stated():
    share = identity.detectable_share(200, 0.99)
    assert share == pytest.approx(0.0228, abs=1e-3)
    assert 1 - (1 - share) ** 200 == pytest.approx(0.99)


@pytest.mark.parametrize(
    ("one", "other", "place"),
    [("abc", "abc", None), ("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0), ("", "", None)],
)
def test_where_answers_part(one, other, place):
    assert identity.first_difference(one, other) == place


@pytest.mark.parametrize("share", [0.001, 0.2, 1.0])
def test_as_many_answers_are_corrupted_as_said(share):
    texts = [tuple(range(i % 7)) for i in range(50)]
    bad = identity.corrupted(texts, share, seed=0)
    assert identity.compare(texts, texts, bad).differ == max(1, round(share * 50))


def sample(rng, prompts, answers, length=6, words=8):
    laws = np.random.default_rng(0).dirichlet(np.ones(words), (prompts, length))
    return [[tuple(int(rng.choice(words, p=law)) for law in laws[i]) for _ in range(answers)] for i in range(prompts)]


def test_samples_of_one_law_are_told_apart_as_rarely_as_stated():
    rng = np.random.default_rng(5)
    runs, alpha = 80, 0.05
    found = [mmd.p_value(sample(rng, 3, 8), sample(rng, 3, 8), length=6, permutations=199, seed=i) for i in range(runs)]
    assert at_most(sum(p <= alpha for p in found), runs, alpha)


def test_the_power_of_texts_is_what_simulation_says():
    rng = np.random.default_rng(6)
    reference = sample(rng, 4, 40)
    setting = {"length": 6, "permutations": 99, "alpha": 0.05}
    stated = mmd.power_of(reference, 0.6, rounds=40, seed=0, **setting)
    caught = 0
    for i in range(40):
        bad = mmd.corrupted(sample(rng, 4, 20), 0.6, seed=i)
        p = mmd.p_value(sample(rng, 4, 20), bad, length=6, permutations=99, seed=i)
        caught += p <= 0.05
    assert stated > 0.8
    assert abs(caught / 40 - stated) < 0.2


def test_lengths_matter_to_texts():
    one = [[(1, 2, 3)] * 12]
    assert mmd.p_value(one, [[(1, 2)] * 12], length=3, permutations=999, seed=0) <= 0.002
    assert mmd.p_value(one, one, length=3, permutations=99, seed=0) == 1.0


def check(passed=True, caught=(True,), idle=False):
    power = Power(deviation="", size=0, probability=1, samples=1, false_failure_rate=0)
    controls = tuple(Control("c", each, "") for each in caught)
    return Check(name="x", claim="", passed=passed, found="", measured={}, power=(power,), controls=controls, idle=idle)


@pytest.mark.parametrize(
    ("checks", "verdict"),
    [
        ([check(), check()], Verdict.YES),
        ([check(), check(passed=False)], Verdict.NO),
        ([check(caught=(True, False))], Verdict.INVALID),
        ([check(passed=False, caught=(False,))], Verdict.INVALID),
        ([check(caught=())], Verdict.INVALID),
        ([check(idle=True)], Verdict.INVALID),
        ([check(idle=True), check(passed=False)], Verdict.NO),
        ([], Verdict.INVALID),
    ],
)
def test_the_verdict(checks, verdict):
    assert verdict_of(checks) is verdict
