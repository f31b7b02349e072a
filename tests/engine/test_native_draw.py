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
from decodeloop.speculation.drawing import CoupledRows, DrawsCoupled
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


@given(rows_of_logits(), st.sampled_from([0.0, 1e-4, 0.00011, 0.05, 0.8, 1.0, 1.9, 100.0]), st.integers(0, 2**31 - 9))
@settings(max_examples=120, deadline=None)
def test_every_token_is_the_reference_s(runners, given_rows, temperature, position):
    logits, counts, generator = given_rows
    vocab_size = logits.shape[1]
    state = SamplingState(SamplingParams(temperature=temperature), (), vocab_size=vocab_size, eos_ids=frozenset())
    asked, expected, first = [], [], 0
    for count in counts:
        rows = slice(first, first + count)
        key = tuple(int(word) for word in generator.integers(0, 2**32, 2))
        drafted = ()
        for _ in range(int(generator.integers(0, count))):  # right so far, perhaps wrong from here on
            right = reference(logits, CoupledRows(rows, drafted, key, position, temperature), state)[0]
            drafted = (*drafted, right[-1])
        drafted = (*drafted, *generator.integers(0, vocab_size + 3, count - 1 - len(drafted)).tolist())
        asked.append(CoupledRows(rows, drafted, key, position, state.plain_temperature))
        expected.append(reference(logits, asked[-1], state))
        first += count
    for runner in runners:
        for drawn, (tokens, entropies) in zip(runner.draw_coupled(logits, asked), expected, strict=True):
            assert drawn.tokens == tokens
            assert drawn.entropies == pytest.approx(entropies, abs=5e-5)


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
        return CoupledRows(slice(start, start + len(drafted) + 1), drafted, (1, 2), 9, temperature)

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
        (CoupledRows(slice(1, 3), (1,), (1, 2), 0, 1.0), "rows out of range"),
        (CoupledRows(slice(0, 1), (), (1, 2), -1, 1.0), "position out of range"),
        (CoupledRows(slice(0, 1), (), (1, 2), 0, -1.0), "temperature"),
        (CoupledRows(slice(0, 1), (), (1, 2), 0, np.inf), "temperature"),
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
    {"min_p": 0.1},
    {"top_k": 5},
    {"top_p": 0.9},
    {"logit_hook": lambda tokens, row: row},
]


@pytest.mark.parametrize("more", MORE, ids=lambda more: next(iter(more)))
def test_which_requests_have_rows_without_a_state(more):
    def temperature(**params):
        state = SamplingState(SamplingParams(**params), (1, 2), vocab_size=9, eos_ids=frozenset({4}))
        return state.plain_temperature

    assert temperature(**PLAIN) == 0.7
    assert temperature(**PLAIN, **more) is None
    filters = {"min_p", "top_k", "top_p"}
    assert temperature(**{**PLAIN, "temperature": 0.0}, **more) == (0.0 if filters & set(more) else None)


def test_min_tokens_are_a_matter_of_time():
    state = SamplingState(SamplingParams(temperature=1.0, min_tokens=1), (1,), vocab_size=9, eos_ids=frozenset({4}))
    assert state.plain_temperature is None
    state.advance(3)
    assert state.plain_temperature == 1.0
