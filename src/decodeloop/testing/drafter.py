"""What every drafter must hold to."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.speculation import Draft, Drafter, DrafterSetup, DraftRequest
from decodeloop.speculation.forward import Runner
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.types import SamplingParams

MAX_DRAFT_LEN = 8
MAX_SEQUENCES = 4
MAX_CONTEXT = 512
ORGANIZATION = "acme"
TEMPERATURES = (0.0, 1.0)


def drafter_setup(vocab_size: int, options: Mapping[str, Any] | None = None) -> DrafterSetup:
    """A small setup; whatever draft model is asked for is a toy, whose logits depend on all of its text."""

    def open_toy(spec: str) -> Runner:
        return ToyRunner(None, RunnerOptions(block_tokens=4, options={"vocab_size": vocab_size}))

    return DrafterSetup(
        vocab_size=vocab_size,
        max_context=MAX_CONTEXT,
        max_sequences=MAX_SEQUENCES,
        max_draft_len=MAX_DRAFT_LEN,
        open_runner=open_toy,
        options=options or {},
    )


def check_drafter(factory: Callable[[], Drafter], vocab_size: int) -> None:
    """Raises AssertionError, saying what was broken.

    factory: a fresh drafter for the vocabulary, as built from `drafter_setup`. It must propose no more than asked, ids
    that exist, q that it could have drawn from; leave its inputs alone; say the same again, and the same whether it saw
    a text grow or all at once; and give back what a finished sequence held.
    """
    assert isinstance(factory().free, bool), "`free` says whether it may run at every step"
    for temperature in TEMPERATURES:
        for shares_noise in (True, False):
            _proposes_soundly(factory(), vocab_size, temperature, shares_noise=shares_noise)
            _grows_like_fresh(factory, vocab_size, temperature, shares_noise=shares_noise)
    _batches_like_alone(factory, vocab_size)
    _finish_forgets(factory, vocab_size)


def _texts(vocab_size: int) -> list[list[int]]:
    """Texts of many kinds: short, periodic, random, and a phrase that comes back."""
    rng = random.Random(0)
    phrase = [rng.randrange(vocab_size) for _ in range(12)]
    noise = [rng.randrange(vocab_size) for _ in range(60)]
    return [
        [1],
        [0, 1],
        [2 % vocab_size] * 9,
        [1, 2 % vocab_size] * 6,
        noise,
        [*phrase, *noise[:9], *phrase[:6]],
        [*noise[:20], *phrase, *noise[20:40], *phrase[4:9]],
    ]


def _request(
    sequence_id: int,
    tokens: Sequence[int],
    draft_len: int,
    vocab_size: int,
    *,
    prompt_len: int = 1,
    temperature: float = 0.0,
    shares_noise: bool = True,
) -> DraftRequest:
    params = SamplingParams(temperature=temperature, presence_penalty=0.5)
    state = SamplingState(params, tokens[:prompt_len], vocab_size=vocab_size, eos_ids=frozenset())
    for token in tokens[prompt_len:]:
        state.advance(token)
    chance = RequestChance.of(7, tokens[:prompt_len], 0)
    return DraftRequest(sequence_id, list(tokens), draft_len, state, chance, ORGANIZATION, shares_noise)


def _proposes_soundly(drafter: Drafter, vocab_size: int, temperature: float, *, shares_noise: bool) -> None:
    """Each text asked for every length, repeatedly, beside a sequence that wants nothing."""
    for sequence_id, text in enumerate(_texts(vocab_size)):
        for draft_len in (0, 1, 3, MAX_DRAFT_LEN, MAX_DRAFT_LEN):
            requests = [
                _request(sequence_id, text, draft_len, vocab_size, temperature=temperature, shares_noise=shares_noise),
                _request(1000, [1], 0, vocab_size, temperature=temperature, shares_noise=shares_noise),
            ]
            block = drafter.propose(requests)
            assert len(block.drafts) == len(requests), "a draft for each request, in order"
            assert block.drafts[1].tokens == (), "asked for nothing, proposed something"
            _check_draft(block.drafts[0], draft_len, vocab_size)
            _check_untouched(requests[0], text)
        drafter.finish(sequence_id, text, ORGANIZATION)


def _check_draft(draft: Draft, draft_len: int, vocab_size: int) -> None:
    assert len(draft.tokens) <= draft_len, f"asked for {draft_len}, proposed {len(draft.tokens)}"
    for token in draft.tokens:
        assert 0 <= token < vocab_size, f"token {token} is not in a vocabulary of {vocab_size}"
    bounds = (1.0, *draft.confidence, 0.0)
    assert all(a >= b for a, b in pairwise(bounds)), (
        f"confidence {draft.confidence} must not increase, from 1 at most to 0 at least"
    )
    for token, q in zip(draft.tokens, draft.q or (), strict=False):
        assert q.shape == (vocab_size,), f"a row of q is {q.shape}, not [{vocab_size}]"
        assert (q >= 0).all(), "q has a negative entry"
        assert abs(float(q.sum()) - 1.0) < 1e-6, f"q sums to {q.sum()}"
        assert q[token] > 0, f"token {token} was not drawn from its q"
    if draft.parents is not None:
        assert len(draft.parents) == len(draft.tokens), "a parent for every token"
        assert all(-1 <= parent < i for i, parent in enumerate(draft.parents)), "parents come before children"


def _check_untouched(request: DraftRequest, text: Sequence[int]) -> None:
    assert list(request.tokens) == list(text), "the tokens were changed"
    assert request.state.output_len == len(text) - 1, "the sampling state was left advanced"
    row = np.linspace(0.0, 1.0, request.state.vocab_size, dtype=np.float32)
    fresh = _request(0, text, 0, request.state.vocab_size, temperature=request.state.params.temperature)
    expected = fresh.state.distribution(row).probs
    assert np.array_equal(request.state.distribution(row).probs, expected), "the sampling state was changed"


def _same(one: Draft, other: Draft) -> bool:
    if (one.tokens, one.confidence, one.parents) != (other.tokens, other.confidence, other.parents):
        return False
    if one.q is None or other.q is None:
        return one.q is other.q
    return all(np.array_equal(a, b) for a, b in zip(one.q, other.q, strict=True))


def _grows_like_fresh(
    factory: Callable[[], Drafter], vocab_size: int, temperature: float, *, shares_noise: bool
) -> None:
    """A text that grows by its own drafts, by other tokens, by jumps and after pauses, against one seen at once."""
    rng = random.Random(1)
    drafter = factory()
    tokens = _texts(vocab_size)[-1][:10]
    for step in range(24):
        draft_len = (0, 4, 1, MAX_DRAFT_LEN, 4)[step % 5]

        def ask(who: Drafter, tokens: list[int] = tokens, draft_len: int = draft_len) -> Draft:
            request = _request(
                1, tokens, draft_len, vocab_size, prompt_len=10, temperature=temperature, shares_noise=shares_noise
            )
            return who.propose([request]).drafts[0]

        draft = ask(drafter)
        assert _same(draft, ask(factory())), f"after {len(tokens)} tokens a fresh drafter says something else"
        assert _same(draft, ask(drafter)), "asked twice, it said two things"
        kept = rng.randrange(len(draft.tokens) + 1)
        jump = rng.choice([1, 1, 1, 30])
        tokens = [*tokens, *draft.tokens[:kept], *(rng.randrange(vocab_size) for _ in range(jump))]


def _batches_like_alone(factory: Callable[[], Drafter], vocab_size: int) -> None:
    """What a sequence is proposed does not depend on its company, nor on the company's order."""
    texts = _texts(vocab_size)[-MAX_SEQUENCES:]
    requests = [_request(i, text, 5, vocab_size, temperature=1.0) for i, text in enumerate(texts)]
    alone = [factory().propose([request]).drafts[0] for request in requests]
    together = factory().propose(requests).drafts
    backwards = factory().propose(requests[::-1]).drafts[::-1]
    for one, other, another in zip(alone, together, backwards, strict=True):
        assert _same(one, other), "a draft depends on the other sequences"
        assert _same(one, another), "a draft depends on the order of the sequences"


def _finish_forgets(factory: Callable[[], Drafter], vocab_size: int) -> None:
    """After many finished sequences it holds no more than it may keep of their texts, and an unknown one is no harm."""
    drafter = factory()
    before = dict(drafter.memory_bytes())
    assert all(held >= 0 for held in before.values()), "memory is counted in bytes"
    for sequence_id in range(6 * MAX_SEQUENCES):
        text = _texts(vocab_size)[sequence_id % 7]
        drafter.propose([_request(sequence_id, text, 4, vocab_size)])
        drafter.finish(sequence_id, text[:1], ORGANIZATION)  # no output, so nothing to learn
    drafter.finish(10**6, [1], ORGANIZATION)
    assert dict(drafter.memory_bytes()) == before, f"held {before} before, {drafter.memory_bytes()} after all finished"
