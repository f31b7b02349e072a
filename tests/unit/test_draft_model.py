import random
from dataclasses import replace

import numpy as np
import pytest

from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner
from decodeloop.speculation import DraftRequest
from decodeloop.speculation.drafters.draft_model import ModelDrafter
from decodeloop.speculation.drafters.kv import DraftCache
from decodeloop.speculation.forward import Batch
from decodeloop.speculation.sampling import RequestChance, SamplingState
from decodeloop.testing import drafter_setup
from decodeloop.types import Knowledge, SamplingParams

V = 16
BLOCK_MB = 4 * 16 / (1 << 20)  # of the toy's KV, in blocks of 4 tokens


class Watched:
    """A toy runner that remembers the batches it was given."""

    def __init__(self, **options):
        self.toy = ToyRunner(None, RunnerOptions(block_tokens=4, options={"vocab_size": V, **options}))
        self.batches = []
        self.info = self.toy.info

    def allocate_kv(self, blocks):
        self.blocks = blocks
        self.toy.allocate_kv(blocks)

    def forward(self, batch):
        self.batches.append(batch)
        return self.toy.forward(batch)


def build(runner=None, *, max_sequences=4, kv_memory_mb=512.0, **options):
    runner = runner or Watched()
    setup = replace(
        drafter_setup(V, {"model": "toy", **options}),
        open_runner=lambda spec: runner,
        max_sequences=max_sequences,
        kv_memory_mb=kv_memory_mb,
    )
    return ModelDrafter(setup)


def request(
    sequence_id, tokens, draft_len=4, *, prompt_len=1, shares_noise=True, eos=(), seed=7, matcher=None, **params
):
    params = SamplingParams(**{"temperature": 1.0, **params})
    state = SamplingState(params, tokens[:prompt_len], vocab_size=V, eos_ids=frozenset(eos), matcher=matcher)
    for token in tokens[prompt_len:]:
        state.advance(token)
    chance = RequestChance.of(seed, tokens[:prompt_len], 0)
    return DraftRequest(sequence_id, tokens, draft_len, state, chance, "acme", shares_noise)


def plain(tokens, count, seed=7, prompt_len=1, **params):
    """The text that the toy itself goes on with: a token a forward, without any cache to get wrong."""
    params = SamplingParams(**{"temperature": 1.0, **params})
    chance, text = RequestChance.of(seed, tokens[:prompt_len], 0), list(tokens)
    for _ in range(count):
        state = SamplingState(params, text[:prompt_len], vocab_size=V, eos_ids=frozenset())
        for token in text[prompt_len:]:
            state.advance(token)
        text.append(chance.coupled(state.distribution(logits_after(text)), len(text)))
    return tuple(text[len(tokens) :])


def logits_after(text):
    runner, length = Watched().toy, len(text)
    runner.allocate_kv(-(-length // 4))
    return runner.forward(
        Batch(
            tokens=np.array(text, dtype=np.int32),
            positions=np.arange(length, dtype=np.int32),
            slots=np.zeros(length, dtype=np.int32),
            block_tables=np.arange(-(-length // 4), dtype=np.int32)[None],
            logit_rows=np.array([length - 1], dtype=np.int32),
        )
    ).logits[0]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {}, {"repetition_penalty": 1.5, "top_k": 5}])
def test_the_targets_own_twin_drafts_the_targets_text(params):
    text = [3, 1, 4]
    drafted = build().propose([request(1, text, 6, **params)]).drafts[0].tokens
    assert drafted == plain(text, 6, **params)


def test_its_kv_follows_accepts_rejects_pauses_jumps_and_evictions():
    """A drafter with a tight pool and a long history against one that has only just seen the text."""
    rng = random.Random(3)
    tight = build(kv_memory_mb=18 * BLOCK_MB)
    texts = {i: [rng.randrange(V) for _ in range(rng.randrange(1, 9))] for i in range(4)}
    compared = evicted = 0
    for _ in range(120):
        asked = [
            request(i, list(text), rng.choice([0, 1, 3, 5]), shares_noise=rng.random() < 0.5)
            for i, text in texts.items()
            if rng.random() < 0.7
        ]
        for one, draft in zip(asked, tight.propose(asked).drafts, strict=True):
            fresh = build().propose([one]).drafts[0]
            if draft.tokens:
                assert (draft.tokens, draft.confidence) == (fresh.tokens, fresh.confidence)
                compared += 1
            else:
                evicted += bool(one.draft_len)
            text = texts[one.sequence_id]
            text += draft.tokens[: rng.randrange(len(draft.tokens) + 1)]
            text += [rng.randrange(V) for _ in range(rng.choice([1, 1, 1, 9]))]
            if len(text) > 40:
                tight.finish(one.sequence_id, text, "acme")
                texts[one.sequence_id] = [rng.randrange(V)]
    assert compared > 100
    assert evicted > 5
    for i, text in texts.items():
        tight.finish(i, text, "acme")
    assert tight._cache.free_blocks == 18


def test_all_sequences_share_a_forward_at_each_depth():
    runner = Watched()
    drafter = build(runner)
    block = drafter.propose([request(i, [i, 1, 2], 2 + i) for i in range(4)])
    assert block.lens == (2, 3, 4, 5)
    assert [len(batch.tokens) for batch in runner.batches] == [12, 4, 3, 2, 1]
    assert [len(batch.logit_rows) for batch in runner.batches] == [4, 4, 3, 2, 1]


def test_only_what_is_new_is_read():
    runner = Watched()
    drafter = build(runner)
    text = [1, 2, 3, 4, 5]
    first = drafter.propose([request(1, text, 4)]).drafts[0].tokens
    runner.batches.clear()
    text = [*text, *first[:2], (first[2] + 1) % V]  # two accepted, one recovered
    second = drafter.propose([request(1, text, 4)]).drafts[0].tokens
    assert runner.batches[0].tokens.tolist() == text[-1:]
    assert runner.batches[0].positions.tolist() == [len(text) - 1]
    runner.batches.clear()
    text = [*text, *second, 9]  # all accepted, and the bonus token
    drafter.propose([request(1, text, 4)])
    assert runner.batches[0].tokens.tolist() == [second[-1], 9]


def test_a_long_prompt_is_read_in_bounded_chunks_and_holds_up_nobody():
    runner = Watched()
    drafter = build(runner, catch_up_tokens=16)
    long, short = [i % V for i in range(50)], [1, 2]
    lens = []
    for _ in range(5):
        runner.batches.clear()
        lens.append(drafter.propose([request(1, long, 3), request(2, short, 3)]).lens)
        assert max(len(batch.tokens) for batch in runner.batches) <= 16 + 4
    assert lens == [(0, 3), (0, 3), (0, 3), (3, 3), (3, 3)]
    assert drafter.propose([request(1, long, 3)]).drafts[0].tokens == plain(long, 3)


def test_long_prompts_share_the_bound():
    runner = Watched()
    drafter = build(runner, catch_up_tokens=16)
    texts = [[i % V for i in range(length)] for length in (40, 30, 20)]
    lens = []
    for _ in range(6):
        runner.batches.clear()
        lens.append(drafter.propose([request(i, text, 3) for i, text in enumerate(texts)]).lens)
        assert max(len(batch.tokens) for batch in runner.batches) <= 16 + 3 * 4
    assert lens[0] == (0, 0, 0)
    assert lens[-1] == (3, 3, 3)
    assert lens == sorted(lens)


def test_near_its_context_limit_it_drafts_what_fits_then_nothing():
    drafter = build(Watched(max_context=10))
    for length, expected in ((7, 4), (8, 3), (9, 2), (10, 1), (11, 0), (30, 0)):
        text = [i % V for i in range(length)]
        assert drafter.propose([request(1, text, 4), request(2, [1, 2], 4)]).lens == (expected, 4)


def test_out_of_memory_it_proposes_nothing_and_the_others_draft_on():
    drafter = build(kv_memory_mb=4 * BLOCK_MB)
    texts = [[1] * 9, [2] * 9, [3] * 3]
    assert drafter.propose([request(i, text, 2) for i, text in enumerate(texts)]).lens == (2, 0, 2)
    assert drafter.propose([request(1, texts[1], 2)]).lens == (2,)  # the idle ones made room
    assert drafter.propose([request(5, [5] * 40, 2)]).lens == (0,)


def test_the_least_recently_used_sequence_makes_room():
    cache = DraftCache(4, 4)
    for sequence_id in (1, 2):
        assert len(cache.reserve(sequence_id, 8, ()).blocks) == 2
    cache.reserve(1, 8, ())
    assert cache.reserve(3, 5, ()) is not None
    assert (1 in cache, 2 in cache, 3 in cache) == (True, False, True)
    assert cache.reserve(4, 12, {1}) is None
    assert (1 in cache, 4 in cache) == (True, False)
    assert cache.reserve(1, 20, ()) is None  # more than there is, even with all others gone
    assert cache.free_blocks == 4


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


def test_what_it_holds_is_told_and_bounded():
    runner = Watched()
    drafter = build(runner, max_sequences=3)
    assert runner.blocks == 3 * 512 // 4  # no more than its sequences can fill
    assert drafter.memory_bytes() == {"draft_weights": 0, "draft_kv": runner.blocks * 4 * 16}


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
