"""Faults from the field, without an engine: a toy target, the real sampling state, noise and verifiers."""

import numpy as np
import pytest

from decodeloop.speculation import Draft
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.speculation.verifiers import verifiers
from decodeloop.types import SamplingParams

V = 24
EOS = 23
PROMPT = (3, 1, 4, 1, 5)
ALL = verifiers.names()


def logits_after(tokens):
    """Depends on the last two tokens."""
    rng = np.random.default_rng([7, *tokens[-2:]])
    return (2.0 * rng.normal(size=V)).astype(np.float32)


class Rows:
    """The engine's rows: each with the state after the drafted tokens before it."""

    def __init__(self, state, text, drafted):
        self._state, self._text, self._drafted = state.fork(), text, drafted
        self._advanced = 0

    def __getitem__(self, i):
        while self._advanced < i:
            self._state.advance(self._drafted[self._advanced])
            self._advanced += 1
        return self._state.distribution(self.logits([*self._text, *self._drafted[:i]]))

    def logits(self, tokens):
        return logits_after(tokens)

    def position(self, i):
        return len(self._text) + i


def generate(drafting, name="coupled", count=40, seed=1, rows=Rows, **params):
    """The output's first `count` tokens; drafting: output so far -> tokens to submit."""
    state = SamplingState(SamplingParams(**params), PROMPT, vocab_size=V, eos_ids=frozenset({EOS}))
    verifier, chance, output = verifiers.load(name)(), RequestChance.of(seed, PROMPT, 0), []
    while len(output) < count:
        drafted = tuple(drafting(output))
        verdict = verifier.judge(Draft(drafted), rows(state, [*PROMPT, *output], drafted), chance)
        for token in verdict.emitted:
            state.advance(token)
        output += verdict.emitted
    return output[:count]


def plain(**params):
    return generate(lambda output: (), **params)


def oracle(truth, depth):
    return lambda output: truth[len(output) : len(output) + depth]


def half_right(truth, depth):
    """Right up to the middle of each draft."""
    return lambda output: [
        token if k < depth // 2 else (token + 1) % V for k, token in enumerate(truth[len(output) : len(output) + depth])
    ]


def wrong(truth, depth):
    return lambda output: [(token + 1) % V for token in truth[len(output) : len(output) + depth]]


REQUESTS = {
    "greedy": {"temperature": 0.0},
    "warm": {"temperature": 0.8},
    "hot": {"temperature": 1.3},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 0.8},
    "greedy penalties": {
        "repetition_penalty": 1.3,
        "presence_penalty": 1.0,
        "frequency_penalty": 0.8,
        "temperature": 0.0,
    },
    "top_k": {"top_k": 3},
    "top_p": {"top_p": 0.6},
    "min_p": {"min_p": 0.3},
    "bias": {"logit_bias": ((2, 4.0),)},
    "allowed": {"allowed_token_ids": (1, 5, 9, 13)},
    "banned": {"banned_token_ids": (0, 1, 2)},
    "hook": {"logit_hook": lambda tokens, row: np.roll(row, len(tokens) % 3)},
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("drafting", [oracle, half_right, wrong])
def test_the_text_does_not_depend_on_drafts_or_depth(request_name, drafting):
    truth = plain(**REQUESTS[request_name])
    for depth in (1, 2, 8):
        assert generate(drafting(truth, depth), **REQUESTS[request_name]) == truth


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("request_name", "legal"),
    [("allowed", {1, 5, 9, 13}), ("banned", set(range(3, V)))],
)
def test_bans_act_on_every_emitted_token(name, request_name, legal):
    for seed in range(5):
        for depth in (0, 3):
            drafting = lambda output: [(len(output) + k) % V for k in range(depth)]  # noqa: B023, E731
            output = generate(drafting, name, seed=seed, **REQUESTS[request_name])
            assert set(output) <= legal


@pytest.mark.parametrize("name", ALL)
def test_the_hook_runs_for_every_row_that_is_judged(name):
    asked, hooked = [], []

    class Counted(Rows):
        def logits(self, tokens):
            asked.append(tuple(tokens))
            return super().logits(tokens)

    def hook(tokens, row):
        hooked.append(tuple(tokens))
        return row

    truth = plain(temperature=0.0)
    generate(half_right(truth, 4), name, temperature=0.0, rows=Counted, logit_hook=hook)
    assert hooked == asked
    assert len(asked) > 40 / 3


def test_a_seed_belongs_to_its_request():
    assert plain(seed=5) == plain(seed=5)
    texts = {tuple(plain(seed=seed, count=10)) for seed in range(30)}
    assert len(texts) == 30


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("least", [0, 1, 3, 4])
def test_eos_is_impossible_before_exactly_min_tokens(name, least):
    """EOS is all but certain, and drafted everywhere: at N - 1 and N too."""

    class Ending(Rows):
        def logits(self, tokens):
            row = super().logits(tokens)
            row[EOS] = 60.0
            return row

    for depth in range(6):
        for truth in ([EOS] * 8, [*[1] * (least - 1), EOS, EOS, EOS], [*[1] * least, EOS]):
            output = generate(oracle(truth, depth), name, count=8, rows=Ending, min_tokens=least)
            assert output.index(EOS) == least


def test_the_last_places_of_temperature_and_ties():
    """1e-4 behaves as 0 also where two tokens are exactly as likely."""

    class Tied(Rows):
        def logits(self, tokens):
            row = super().logits(tokens)
            row[[6, 17]] = row.max() + 1
            return row

    assert generate(lambda output: (17, 17), rows=Tied, temperature=1e-4) == [6] * 40
    assert generate(lambda output: (6, 17), rows=Tied, temperature=0.0) == [6] * 40
