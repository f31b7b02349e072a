"""The model drafter's KV: what is read again, in chunks of what size, and what happens when it is full."""

import random

from decodeloop.speculation.drafters.kv import DraftCache
from draft_model_rig import BLOCK_MB, V, Watched, build, plain, request


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


def test_what_it_holds_is_told_and_bounded():
    runner = Watched()
    drafter = build(runner, max_sequences=3)
    assert runner.blocks == 3 * 512 // 4  # no more than its sequences can fill
    assert drafter.memory_bytes() == {"draft_weights": 0, "draft_kv": runner.blocks * 4 * 16}
