"""The pool's books: nothing leaks, nothing is shared that could be written, tenants can't see each other."""

from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.engine.kv_cache import KvCache

BLOCK = 4


def tokens(n, start=0):
    return list(range(start, start + n))


def filled(cache, prompt, organization="a"):
    """A table over `prompt`, computed and published; and how much of it was found in the cache."""
    table, covered = cache.open(prompt, organization)
    assert cache.grow(table, len(prompt))
    cache.publish(table, prompt, len(prompt))
    return table, covered


def test_a_second_prompt_finds_the_first_ones_blocks():
    cache = KvCache(16, BLOCK)
    first, covered = filled(cache, tokens(10))
    assert covered == 0
    second, covered = filled(cache, tokens(10))
    assert covered == 8
    assert second.blocks[:2] == first.blocks[:2]
    assert second.blocks[2] != first.blocks[2]


def test_one_token_is_always_left_to_compute():
    cache = KvCache(16, BLOCK)
    filled(cache, tokens(8))
    _, covered = cache.open(tokens(8), "a")
    assert covered == 4


def test_organizations_never_share():
    cache = KvCache(16, BLOCK)
    filled(cache, tokens(12), "a")
    _, covered = cache.open(tokens(12), "b")
    assert covered == 0


def test_same_block_after_another_prefix_is_another_block():
    cache = KvCache(16, BLOCK)
    filled(cache, tokens(4) + tokens(8, 50))
    _, covered = cache.open(tokens(4, 90) + tokens(8, 50), "a")
    assert covered == 0


def test_released_prefixes_stay_until_space_is_needed():
    cache = KvCache(4, BLOCK)
    table, _ = filled(cache, tokens(16))
    cache.release(table)
    assert (cache.free_blocks, cache.available_blocks) == (0, 4)
    other, covered = cache.open(tokens(16), "a")
    assert covered == 12
    cache.release(other)
    table, _ = cache.open(tokens(9, 100), "a")
    assert cache.grow(table, 9)
    _, covered = cache.open(tokens(16), "a")
    assert covered == 4  # the tail went first: a prefix outlives its continuations


def test_drafts_are_lent_what_text_leaves_free_and_evict_nothing():
    cache = KvCache(6, BLOCK, spare_blocks=2)
    first, _ = filled(cache, tokens(16))
    cache.release(first)
    second, _ = cache.open(tokens(8, 100), "a")
    assert cache.grow(second, 8)  # takes two, and what was cached makes room for a draft's two
    assert (cache.free_blocks, cache.available_blocks) == (2, 4)
    assert cache.lend(second, 16)
    assert not cache.lend(second, 20)
    assert (cache.free_blocks, cache.available_blocks) == (0, 2)
    cache.shrink(second, 8)
    assert (cache.free_blocks, cache.available_blocks) == (2, 4)


def test_growing_beyond_the_pool_changes_nothing():
    cache = KvCache(4, BLOCK)
    table, _ = cache.open(tokens(3), "a")
    assert not cache.grow(table, 17)
    assert (table.blocks, cache.free_blocks) == ([], 4)


def test_shrinking_keeps_what_is_published():
    cache = KvCache(8, BLOCK)
    table, _ = filled(cache, tokens(8))
    assert cache.grow(table, 20)
    cache.shrink(table, 9)
    assert len(table.blocks) == 3
    cache.shrink(table, 0)
    assert len(table.blocks) == 2


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_workload_returns_every_block(data):
    """Random opens, growth, publishing, shrinking and releases over two organizations and few distinct prompts."""
    cache = KvCache(12, BLOCK, spare_blocks=data.draw(st.integers(0, 3)))
    live = []
    for _ in range(data.draw(st.integers(1, 40))):
        act = data.draw(st.sampled_from(["open", "grow", "lend", "shrink", "release", "reset"]))
        if act == "open":
            prompt = tokens(data.draw(st.integers(1, 20)), data.draw(st.sampled_from([0, 100])))
            table, covered = cache.open(prompt, data.draw(st.sampled_from(["a", "b"])))
            assert covered < len(prompt)
            live.append((table, prompt))
        elif act == "reset":
            cache.reset_prefixes()
        elif live:
            table, prompt = live[data.draw(st.integers(0, len(live) - 1))]
            if act == "grow" and cache.grow(table, len(prompt) + data.draw(st.integers(0, 8))):
                cache.publish(table, prompt, len(prompt))
            elif act == "lend":
                cache.lend(table, len(prompt) + data.draw(st.integers(0, 8)))
            elif act == "shrink":
                cache.shrink(table, data.draw(st.integers(0, 24)))
            elif act == "release":
                cache.release(table)
                live = [pair for pair in live if pair[0] is not table]
        held = {block for table, _ in live for block in table.blocks}
        assert len(held) + cache.available_blocks == cache.blocks
        private = [block for table, _ in live for block in table.blocks[table.published :]]
        assert len(private) == len(set(private)), "a block that may be written is held twice"
    for table, _ in live:
        cache.release(table)
    cache.reset_prefixes()
    assert cache.free_blocks == cache.blocks
