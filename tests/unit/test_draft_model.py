"""What the model drafter drafts: the text of its model, with the q that it drew from."""

from dataclasses import replace

import numpy as np
import pytest

from decodeloop.speculation.drafters.draft_model import ModelDrafter
from decodeloop.testing import drafter_setup
from decodeloop.types import Knowledge
from draft_model_rig import V, Watched, build, logits_after, plain, request


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"repetition_penalty": 1.5, "top_k": 5}])
def test_the_targets_own_twin_drafts_the_targets_text(params):
    text = [3, 1, 4]
    drafted = build().propose([request(1, text, 6, **params)]).drafts[0].tokens
    assert drafted == plain(text, 6, **params)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.6, "top_p": 0.8}, {"presence_penalty": 1.5}])
def test_q_is_what_a_token_was_drawn_from(params):
    """Penalties, filters and temperature after x_<k included: recomputed from the text alone."""
    text = [3, 1, 4]
    draft = build().propose([request(1, text, 5, shares_noise=False, **params)]).drafts[0]
    assert len(draft.tokens) == len(draft.q) == 5
    for k, q in enumerate(draft.q):
        row = request(1, [*text, *draft.tokens[:k]], **params).state.distribution(
            logits_after([*text, *draft.tokens[:k]])
        )
        np.testing.assert_array_equal(q, row.probs)


def test_draft_draws_follow_q():
    counts = np.zeros(V)
    drafter = build()
    for seed in range(400):
        draft = drafter.propose([request(seed, [3, 1, 4], 1, shares_noise=False, seed=seed)]).drafts[0]
        counts[draft.tokens[0]] += 1
        drafter.finish(seed, [], "")
    assert np.abs(counts / 400 - draft.q[0]).sum() / 2 < 0.1


@pytest.mark.parametrize("more", [{"temperature": 0.0, "shares_noise": False}, {"shares_noise": True}])
def test_point_masses_carry_no_q(more):
    assert build().propose([request(1, [3, 1, 4], **more)]).drafts[0].q is None


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_knows_only_what_came_before(temperature):
    """Drafts of many seeds: those that agree on x_<k give position k the same confidence, whatever they drew there."""
    drafter, seen = build(), {}
    for seed in range(60):
        draft = drafter.propose([request(seed, [3, 1, 4], 3, seed=seed, temperature=temperature)]).drafts[0]
        assert draft.knowledge is Knowledge.PREFIX
        for k, value in enumerate(draft.confidence):
            assert seen.setdefault(draft.tokens[:k], value) == value
        drafter.finish(seed, [], "")
    assert len(seen) > 3 if temperature else len(seen) == 3
    row = logits_after([3, 1, 4]).astype(float)
    assert seen[()] == pytest.approx(np.exp(row - row.max()).sum() ** -1)


class EvenOnly:
    """A grammar of even tokens in which every second one is 6."""

    def __init__(self, accepted=0):
        self.accepted = accepted

    def allowed(self):
        return np.arange(V) == 6 if self.accepted % 2 else np.arange(V) % 2 == 0

    def accept(self, token):
        allowed = bool(self.allowed()[token])
        self.accepted += allowed
        return allowed

    def rollback(self, count):
        self.accepted -= count

    def fork(self):
        return EvenOnly(self.accepted)


@pytest.mark.parametrize("shares_noise", [True, False])
def test_a_grammar_masks_q_before_the_draw(shares_noise):
    matcher = EvenOnly()
    draft = build().propose([request(1, [2], 8, matcher=matcher, shares_noise=shares_noise)]).drafts[0]
    assert len(draft.tokens) == 8
    assert all(token % 2 == 0 for token in draft.tokens)
    assert draft.tokens[1::2] == (6, 6, 6, 6)
    assert (draft.q is None) == shares_noise
    assert all(q[1::2].sum() == 0 for q in draft.q or ())
    assert matcher.accepted == 0


def test_an_end_token_ends_the_draft():
    text = [3, 1, 4]
    future = plain(text, 6, temperature=0.0)
    end = future[2]
    expected = future[: future.index(end) + 1]
    assert build().propose([request(1, text, 6, temperature=0.0, eos=[end])]).drafts[0].tokens == expected


def test_bad_logits_end_one_draft_and_harm_no_other():
    good, bad = [3, 1], [3, 5]
    drafter = build(Watched(nan_at=5))
    block = drafter.propose([request(1, good, 2, temperature=0.0), request(2, bad, 2, temperature=0.0)])
    assert block.drafts[1].tokens == ()
    assert block.drafts[0].tokens[:1] == plain(good, 1, temperature=0.0)


def test_a_broken_logit_hook_ends_its_own_draft_alone():
    def broken(tokens, logits):
        raise KeyError("no such word")

    requests = [request(1, [3, 1], 2), request(2, [3, 1], 2, logit_hook=broken)]
    assert build().propose(requests).lens == (2, 0)


@pytest.mark.parametrize("size", [V - 1, V + 1])
def test_another_vocabulary_is_refused(size):
    message = f"'toy' has a vocabulary of {size} tokens, the target one of {V}; a draft model must share"
    with pytest.raises(ValueError, match=message):
        build(Watched(vocab_size=size))


def test_what_cannot_be_opened_is_refused():
    with pytest.raises(ValueError, match='the option "model" is empty: int4, layers:N, int4:layers:N or a path'):
        ModelDrafter(drafter_setup(V, {"model": ""}))
    with pytest.raises(ValueError, match="nothing here can open the model 'int4'"):
        ModelDrafter(replace(drafter_setup(V, {"model": "int4"}), open_runner=None))
    with pytest.raises(ValueError, match="1e-05 MiB hold no KV block of 64 bytes"):
        build(kv_memory_mb=1e-5)
    with pytest.raises(ValueError, match="catch_up_tokens must be at least 1, not 0"):
        build(catch_up_tokens=0)
