"""Rows are shaped by the request's own sampling state after the drafted tokens: exact laws through the real state.

The target is a table of logits, plain decoding walks it with a sampling state, and a verifier walks it with a draft.
"""

from itertools import product

import numpy as np
import pytest

from decodeloop.speculation.sampling import NothingLeft, SamplingState
from decodeloop.speculation.verifiers import verifiers
from decodeloop.testing import EXACT, branches, sampled_draft, total_variation
from decodeloop.types import SamplingParams

V, DEPTH = 3, 2
EOS = 2
ALL = verifiers.names()
SAMPLED = ["block", "rejection"]


def logit_table(seed, scale=1.5):
    rng = np.random.default_rng(seed)
    contexts = (c for n in range(DEPTH + 2) for c in product(range(V), repeat=n))
    return {c: (scale * rng.normal(size=V)).astype(np.float32) for c in contexts}


def state_for(params):
    return SamplingState(params, [0], vocab_size=V, eos_ids=frozenset({EOS}))


def rows_after(params, logits, tokens):
    state = state_for(params)
    for token in tokens:
        state.advance(token)
    return state.distribution(logits[tokens])


class Honest:
    """Target rows as the engine makes them."""

    def __init__(self, params, logits, tokens):
        self._state, self._logits, self._tokens, self._advanced = state_for(params), logits, tokens, 0

    def __getitem__(self, i):
        while self._advanced < i:
            self._state.advance(self._tokens[self._advanced])
            self._advanced += 1
        return self._state.distribution(self._logits[self._tokens[:i]])

    def position(self, i):
        return i


class Stale(Honest):
    """The state is advanced only when a block is committed: inside it, penalties are those of its start."""

    def __getitem__(self, i):
        return self._state.distribution(self._logits[self._tokens[:i]])


class FilteredAtTheEnd(Honest):
    """Filters act on the bonus token alone."""

    def __init__(self, params, logits, tokens):
        super().__init__(params, logits, tokens)
        self._plain = Honest(SamplingParams(temperature=params.temperature), logits, tokens)

    def __getitem__(self, i):
        return super().__getitem__(i) if i == len(self._tokens) else self._plain[i]


def continued(params, logits, tokens, length=DEPTH + 1):
    if len(tokens) >= length:
        yield tokens[:length], 1.0
        return
    for token, probability in enumerate(rows_after(params, logits, tokens).probs):
        if probability > 0:
            for longer, rest in continued(params, logits, (*tokens, token), length):
                yield longer, probability * rest


def distance(name, params, rows=Honest, seed=0, drafting=None):
    """From plain decoding, with a draft of another model shaped by the request's own parameters (or `drafting`)."""
    logits, other = logit_table(seed), logit_table(seed + 100)
    q = {c: rows_after(params, other, c) for c in other if reachable(params, other, c)}
    said = {}

    def run(chance):
        draft = (drafting or sampled_draft)(chance, q, DEPTH)
        return verifiers.load(name)().judge(draft, rows(params, logits, draft.tokens), chance).emitted

    for emitted, probability in branches(run):
        for tokens, rest in continued(params, logits, emitted):
            said[tokens] = said.get(tokens, 0.0) + probability * rest
    return total_variation(said, dict(continued(params, logits, ())))


def reachable(params, logits, context):
    try:
        return all(rows_after(params, logits, context[:k]).prob(t) > 0 for k, t in enumerate(context))
    except NothingLeft:
        return False


REQUESTS = {
    "plain": SamplingParams(),
    "warm": SamplingParams(temperature=0.7),
    "greedy": SamplingParams(temperature=0.0),
    "penalties": SamplingParams(repetition_penalty=1.3, presence_penalty=1.0, frequency_penalty=0.8),
    "top_k": SamplingParams(top_k=2),
    "top_p": SamplingParams(top_p=0.7),
    "min_p": SamplingParams(min_p=0.4),
    "bias": SamplingParams(logit_bias=((1, 1.5), (0, -2.0))),
    "banned": SamplingParams(banned_token_ids=(1,)),
    "allowed": SamplingParams(allowed_token_ids=(0, 2)),
    "min_tokens": SamplingParams(min_tokens=2),
    "hook": SamplingParams(logit_hook=lambda tokens, row: row + 0.5 * np.arange(V) * (len(tokens) % 2)),
}


@pytest.mark.parametrize("request_name", REQUESTS)
@pytest.mark.parametrize("name", ALL)
def test_every_parameter_acts_on_every_row(name, request_name):
    for seed in range(2):
        assert distance(name, REQUESTS[request_name], seed=seed) < EXACT


@pytest.mark.parametrize("name", ALL)
def test_penalties_from_before_the_block_are_caught(name):
    assert distance(name, SamplingParams(presence_penalty=2.0, frequency_penalty=2.0), rows=Stale) > 0.25


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("request_name", ["top_k", "top_p", "min_p", "bias", "banned"])
def test_filters_on_the_bonus_token_alone_are_caught(name, request_name):
    assert distance(name, REQUESTS[request_name], rows=FilteredAtTheEnd) > 0.04


def unmasked(seed):
    """A draft from the other model's bare rows, submitted whole: p = 0 rejects what is excluded."""

    def drafting(chance, q, depth):
        return sampled_draft(chance, bare(seed), depth)

    return drafting


def trimmed(seed, illegal):
    """The same, cut before an excluded token."""

    def drafting(chance, q, depth):
        draft = sampled_draft(chance, bare(seed), depth)
        return draft.cut(next((k for k, token in enumerate(draft.tokens) if token in illegal), depth))

    return drafting


def bare(seed):
    other = logit_table(seed + 100)
    return {c: rows_after(SamplingParams(), other, c) for c in other}


EXCLUDING = {"banned": {1}, "allowed": {1}, "min_tokens": {EOS}}


@pytest.mark.parametrize("request_name", EXCLUDING)
@pytest.mark.parametrize("name", SAMPLED)
def test_trimming_excluded_tokens_is_caught_and_submitting_them_is_exact(name, request_name):
    params, illegal = REQUESTS[request_name], EXCLUDING[request_name]
    assert distance(name, params, drafting=trimmed(0, illegal)) > 0.02
    assert distance(name, params, drafting=unmasked(0)) < EXACT
    assert distance("coupled", params, drafting=trimmed(0, illegal)) < EXACT
