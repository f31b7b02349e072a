"""The runner's own draw says what the reference says, to the last bit, or leaves the row to it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.engine import kernels
from decodeloop.engine.rows import VerifyRows
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.native import NativeRunner
from decodeloop.speculation.block import Draft
from decodeloop.speculation.drawing import CoupledRows, DrawsCoupled, PlainSampling
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.speculation.verifiers.coupled import CoupledVerifier
from decodeloop.types import SamplingParams
from invented import InventedCheckpoint, invented_config

ISAS = kernels.load().kernels()


@pytest.fixture(scope="module")
def runners():
    checkpoint = InventedCheckpoint(invented_config("llama"))
    options = [RunnerOptions(threads=threads, options={"isa": isa}) for isa in ISAS for threads in (1, 2)]
    return [NativeRunner(checkpoint, each) for each in options]


def reference(logits, rows, state):
    """Tokens and entropies of one sequence by verifier, chance and sampling state."""
    seen = VerifyRows(state, logits[rows.rows], rows.drafted, rows.position)
    verdict = CoupledVerifier().judge(Draft(rows.drafted), seen, RequestChance(rows.key))
    return verdict.emitted, seen.entropies(len(verdict.emitted))


@st.composite
def rows_of_logits(draw):
    """[R, V] with everything that rows may hold: ties, excluded tokens, peaks, plains; and whose rows they are."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32)))
    vocab_size = draw(st.sampled_from([1, 2, 7, 31, 1023, 1025, 2500]))
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    logits = generator.normal(size=(sum(counts), vocab_size)) * draw(st.sampled_from([0.0, 0.3, 3.0, 30.0]))
    if draw(st.booleans()):
        logits = np.round(logits)
    if draw(st.booleans()):
        logits[:, generator.permutation(vocab_size)[: vocab_size // 2]] = -np.inf
    logits += draw(st.sampled_from([0.0, -1e4, 1e4]))
    return logits.astype(np.float32), counts, generator


TEMPERATURES = st.sampled_from([0.0, 1e-4, 0.00011, 0.05, 0.8, 1.0, 1.9, 100.0])
POSITIONS = st.integers(0, 2**31 - 9)
FILTERS = st.fixed_dictionaries(
    {
        "min_p": st.sampled_from([0.0, 0.0, 5e-324, 1e-9, 0.05, 0.5, 1.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 40, 1000, 2500, 2**40]),
        "top_p": st.sampled_from([1.0, 1.0, 1e-300, 0.01, 0.3, 0.5, 0.9, 0.95, 0.999999, 1.0 - 2**-53]),
    }
)


@given(rows_of_logits(), TEMPERATURES, POSITIONS)
@settings(max_examples=120, deadline=None)
def test_every_token_is_the_reference_s(runners, given_rows, temperature, position):
    asked, expected = asked_of(given_rows, SamplingParams(temperature=temperature), position)
    for runner in runners:
        for drawn, (tokens, entropies) in zip(runner.draw_coupled(given_rows[0], asked), expected, strict=True):
            assert drawn.tokens == tokens
            assert drawn.entropies == pytest.approx(entropies, abs=5e-5)


@given(rows_of_logits(), TEMPERATURES, FILTERS, POSITIONS)
@settings(max_examples=300, deadline=None)
def test_every_filtered_token_is_the_reference_s_or_left_to_it(runners, given_rows, temperature, filters, position):
    asked, expected = asked_of(given_rows, SamplingParams(temperature=temperature, **filters), position)
    for runner in runners:
        for drawn, (tokens, entropies) in zip(runner.draw_coupled(given_rows[0], asked), expected, strict=True):
            if drawn is None:
                assert filters["top_p"] < 1.0
                continue
            assert drawn.tokens == tokens
            assert drawn.entropies == pytest.approx(entropies, abs=5e-5)


@pytest.mark.parametrize("peak", [0.0, 8.0])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.9, 0.99])
def test_nuclei_of_ordinary_rows_are_seldom_left_to_the_reference(runners, peak, temperature, top_p):
    generator = np.random.default_rng(5)
    logits = generator.normal(size=(100, 20_000)).astype(np.float32) * 2
    logits[:, :300] += peak * generator.random((100, 300), dtype=np.float32)
    params = SamplingParams(temperature=temperature, top_p=top_p)
    asked, expected = asked_of((logits, [1] * 100, generator), params, 3)
    for runner in runners:
        drawn = runner.draw_coupled(logits, asked)
        assert drawn.count(None) == 0
        assert [each.tokens for each in drawn] == [tokens for tokens, _ in expected]


def borders(shares):
    """Rows whose first so many tokens have just `share` of the mass, of eight alike."""
    return [(count, count / 8 * share) for count in range(1, 8) for share in shares]


@pytest.mark.parametrize(("count", "top_p"), borders([1.0, 1.0 - 1e-13, 1.0 + 1e-13]))
def test_a_nucleus_whose_border_is_a_matter_of_rounding_is_left_to_the_reference(runners, count, top_p):
    logits = np.full((1, 8), 2.0, np.float32)
    for runner in runners:
        assert runner.draw_coupled(logits, [one_row(PlainSampling(1.0, top_p=top_p))]) == [None]


@pytest.mark.parametrize(("count", "top_p"), borders([1.0 - 1e-6, 1.0 + 1e-6]))
def test_a_nucleus_that_ends_among_equals_keeps_the_first(runners, count, top_p):
    logits = np.full((1, 8), 2.0, np.float32)
    params = SamplingParams(top_p=top_p)
    for position in range(40):
        asked, expected = asked_of((logits, [1], np.random.default_rng(position)), params, position)
        for runner in runners:
            assert runner.draw_coupled(logits, asked)[0].tokens == expected[0][0]


def test_log_weights_that_exponentials_may_confuse_are_left_to_the_reference(runners):
    logits = np.array([[8.0, 0.0, np.float32(1e-13), np.float32(-1e-13)]], np.float32)
    for runner in runners:
        assert runner.draw_coupled(logits, [one_row(PlainSampling(4.0, top_p=0.8))]) == [None]
        assert runner.draw_coupled(logits, [one_row(PlainSampling(4.0, top_p=0.5))]) != [None]


def one_row(sampling):
    return CoupledRows(slice(0, 1), (), (1, 2), 0, sampling)


def asked_of(given_rows, params, position):
    """Rows of several sequences with drafts that are right for a while, and what the reference says of each."""
    logits, counts, generator = given_rows
    vocab_size = logits.shape[1]
    state = SamplingState(params, (), vocab_size=vocab_size, eos_ids=frozenset())
    asked, expected, first = [], [], 0
    for count in counts:
        rows = slice(first, first + count)
        key = tuple(int(word) for word in generator.integers(0, 2**32, 2))
        drafted = ()
        for _ in range(int(generator.integers(0, count))):  # right so far, perhaps wrong from here on
            right = reference(logits, CoupledRows(rows, drafted, key, position, state.plain), state)[0]
            drafted = (*drafted, right[-1])
        drafted = (*drafted, *generator.integers(0, vocab_size + 3, count - 1 - len(drafted)).tolist())
        asked.append(CoupledRows(rows, drafted, key, position, state.plain))
        expected.append(reference(logits, asked[-1], state))
        first += count
    return asked, expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, None])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_that_is_no_distribution_is_left_to_the_reference(runners, bad, temperature):
    logits = np.random.default_rng(1).normal(size=(4, 300)).astype(np.float32)
    if bad is None:
        logits[2] = -np.inf
    else:
        logits[2, 299] = bad
    first = int(logits[1].argmax())

    def rows(start, drafted):
        return CoupledRows(slice(start, start + len(drafted) + 1), drafted, (1, 2), 9, PlainSampling(temperature))

    for runner in runners:
        for_first = runner.draw_coupled(logits, [rows(1, ())])[0].tokens
        assert temperature or for_first == (first,)
        wrong, right = (for_first[0] + 1) % 300, for_first[0]
        assert runner.draw_coupled(logits, [rows(2, ())]) == [None]
        (behind_a_wrong_token,) = runner.draw_coupled(logits, [rows(1, (wrong,))])
        assert behind_a_wrong_token.tokens == for_first
        behind_a_right_one, well = runner.draw_coupled(logits, [rows(1, (right,)), rows(3, ())])
        assert behind_a_right_one is None
        assert well is not None


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (CoupledRows(slice(1, 3), (1,), (1, 2), 0, PlainSampling(1.0)), "rows out of range"),
        (CoupledRows(slice(0, 1), (), (1, 2), -1, PlainSampling(1.0)), "position out of range"),
        (CoupledRows(slice(0, 1), (), (1, 2), 0, PlainSampling(-1.0)), "temperature"),
        (CoupledRows(slice(0, 1), (), (1, 2), 0, PlainSampling(np.inf)), "temperature"),
    ],
)
def test_what_it_refuses(runners, rows, message):
    with pytest.raises(ValueError, match=message):
        runners[0].draw_coupled(np.zeros((2, 5), np.float32), [rows])


def test_the_native_runner_says_that_it_draws(runners):
    assert all(isinstance(runner, DrawsCoupled) for runner in runners)


PLAIN = {"temperature": 0.7, "stop": ("x",), "logprobs": 3, "max_tokens": 4, "ignore_eos": True}
MORE = [
    {"repetition_penalty": 1.1},
    {"presence_penalty": 0.1},
    {"frequency_penalty": 0.1},
    {"logit_bias": ((3, 1.0),)},
    {"allowed_token_ids": (1, 2)},
    {"banned_token_ids": (1,)},
    {"min_tokens": 2},
    {"logit_hook": lambda tokens, row: row},
]


def plain_of(**params):
    return SamplingState(SamplingParams(**params), (1, 2), vocab_size=9, eos_ids=frozenset({4})).plain


@pytest.mark.parametrize("more", MORE, ids=lambda more: next(iter(more)))
def test_which_requests_have_rows_with_a_state(more):
    assert plain_of(**PLAIN, **more) is None
    assert plain_of(**{**PLAIN, "temperature": 0.0}, **more) is None


@pytest.mark.parametrize("filters", [{}, {"min_p": 0.1}, {"top_k": 5}, {"top_p": 0.9}])
def test_which_requests_have_rows_without_a_state(filters):
    assert plain_of(**PLAIN, **filters) == PlainSampling(0.7, **filters)
    assert plain_of(**{**PLAIN, "temperature": 0.0}, **filters) == PlainSampling(0.0)


def test_min_tokens_are_a_matter_of_time():
    state = SamplingState(SamplingParams(temperature=1.0, min_tokens=1), (1,), vocab_size=9, eos_ids=frozenset({4}))
    assert state.plain is None
    state.advance(3)
    assert state.plain == PlainSampling(1.0)
