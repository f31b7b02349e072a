"""Exact laws through a request's own sampling state: penalties, filters and bans act on every row of a draft.

The target is a table of logits: plain decoding walks it with a sampling state, a verifier walks it with a draft.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import product

import numpy as np

from decodeloop.evaluation.lossless.enumeration import Branch, Law, Tokens, branches, total_variation
from decodeloop.evaluation.lossless.tables import sampled_draft
from decodeloop.speculation import Draft, TargetRows, Verifier
from decodeloop.speculation.sampling import Distribution, NothingLeft, SamplingState
from decodeloop.types import FloatArray, SamplingParams

VOCAB_SIZE, DEPTH = 3, 2
EOS = 2

Logits = Mapping[Tokens, FloatArray]  # a row after each context
Open = Callable[[SamplingParams, Logits, Tokens], TargetRows]
Drafting = Callable[[Branch, Mapping[Tokens, Distribution], int], Draft]

REQUESTS: Mapping[str, SamplingParams] = {
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
    "hook": SamplingParams(logit_hook=lambda tokens, row: row + 0.5 * np.arange(VOCAB_SIZE) * (len(tokens) % 2)),
}
EXCLUDING: Mapping[str, frozenset[int]] = {  # requests that exclude tokens, and which
    "banned": frozenset({1}),
    "allowed": frozenset({1}),
    "min_tokens": frozenset({EOS}),
}


def logit_table(seed: int, scale: float = 1.5) -> Logits:
    rng = np.random.default_rng(seed)
    contexts = (c for n in range(DEPTH + 2) for c in product(range(VOCAB_SIZE), repeat=n))
    return {c: (scale * rng.normal(size=VOCAB_SIZE)).astype(np.float32) for c in contexts}


def state_for(params: SamplingParams) -> SamplingState:
    return SamplingState(params, [0], vocab_size=VOCAB_SIZE, eos_ids=frozenset({EOS}))


def row_after(params: SamplingParams, logits: Logits, tokens: Tokens) -> Distribution:
    state = state_for(params)
    for token in tokens:
        state.advance(token)
    return state.distribution(logits[tokens])


class Honest:
    """Target rows as the engine makes them."""

    def __init__(self, params: SamplingParams, logits: Logits, tokens: Tokens) -> None:
        self._state, self._logits, self._tokens, self._advanced = state_for(params), logits, tokens, 0

    def __getitem__(self, i: int) -> Distribution:
        while self._advanced < i:
            self._state.advance(self._tokens[self._advanced])
            self._advanced += 1
        return self._state.distribution(self._logits[self._tokens[:i]])

    def position(self, i: int) -> int:
        return i


class Stale(Honest):
    """Unsound: the state advances only when a block is committed; inside it, penalties are those of its start."""

    def __getitem__(self, i: int) -> Distribution:
        return self._state.distribution(self._logits[self._tokens[:i]])


class FilteredAtTheEnd(Honest):
    """Unsound: filters act on the bonus token alone."""

    def __init__(self, params: SamplingParams, logits: Logits, tokens: Tokens) -> None:
        super().__init__(params, logits, tokens)
        self._plain = Honest(SamplingParams(temperature=params.temperature), logits, tokens)

    def __getitem__(self, i: int) -> Distribution:
        return super().__getitem__(i) if i == len(self._tokens) else self._plain[i]


def shaped_distance(
    verifier: Verifier,
    params: SamplingParams,
    rows: Open = Honest,
    *,
    seed: int = 0,
    drafting: Drafting = sampled_draft,
) -> float:
    """From plain decoding, with a draft of another model that the request's own parameters shape (or `drafting`)."""
    logits, other = logit_table(seed), logit_table(seed + 100)
    q = {c: row_after(params, other, c) for c in other if _reachable(params, other, c)}
    said: Law = {}

    def run(chance: Branch) -> Tokens:
        draft = drafting(chance, q, DEPTH)
        return verifier.judge(draft, rows(params, logits, draft.tokens), chance).emitted

    for emitted, probability in branches(run):
        for tokens, rest in _continued(params, logits, emitted):
            said[tokens] = said.get(tokens, 0.0) + probability * rest
    return total_variation(said, dict(_continued(params, logits, ())))


def unmasked(seed: int) -> Drafting:
    """A draft from the other model's bare rows, submitted whole: p = 0 rejects what is excluded."""
    return lambda chance, q, depth: sampled_draft(chance, _bare(seed), depth)


def trimmed(seed: int, illegal: frozenset[int]) -> Drafting:
    """Unsound for sampled drafts: the same, cut before an excluded token."""

    def drafting(chance: Branch, q: Mapping[Tokens, Distribution], depth: int) -> Draft:
        draft = sampled_draft(chance, _bare(seed), depth)
        return draft.cut(next((k for k, token in enumerate(draft.tokens) if token in illegal), depth))

    return drafting


def _bare(seed: int) -> Mapping[Tokens, Distribution]:
    other = logit_table(seed + 100)
    return {c: row_after(SamplingParams(), other, c) for c in other}


def _reachable(params: SamplingParams, logits: Logits, context: Tokens) -> bool:
    try:
        return all(row_after(params, logits, context[:k]).prob(t) > 0 for k, t in enumerate(context))
    except NothingLeft:
        return False


def _continued(
    params: SamplingParams, logits: Logits, tokens: Tokens, length: int = DEPTH + 1
) -> Iterable[tuple[Tokens, float]]:
    if len(tokens) >= length:
        yield tokens[:length], 1.0
        return
    for token, probability in enumerate(row_after(params, logits, tokens).probs):
        if probability > 0:
            for longer, rest in _continued(params, logits, (*tokens, token), length):
                yield longer, float(probability) * rest
