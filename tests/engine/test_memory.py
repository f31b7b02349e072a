"""Memory is worked out before it is taken; what can't fit is refused with the numbers."""

import pytest

from decodeloop.engine.memory import MIB, plan_memory
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import RunnerInfo

INFO = RunnerInfo("r", 100, 8, 2, 8192, 16, 64 * 1024, 300 * MIB, "f", batch_invariant=True)  # 256 KV tokens a MiB


def plan(available_mb=10_000, **settings):
    return plan_memory(INFO, EngineSettings(**settings), available_mb * MIB)


def test_the_pool_holds_what_the_sequences_may_fill_and_no_more():
    assert plan(kv_memory_mb=10_000, max_sequences=2, max_context=1024).kv_bytes == 8 * MIB
    assert plan(kv_memory_mb=16, max_sequences=64).kv_bytes == 16 * MIB


def test_the_context_is_what_the_pool_can_hold():
    assert plan(kv_memory_mb=16).max_context == 4096
    assert plan(kv_memory_mb=64).max_context == 8192


def test_lookahead_is_part_of_the_tax():
    assert plan(max_sequences=8, max_draft_len=16, kv_memory_mb=64).lookahead_bytes == 8 * 16 * 4096


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_context": 8192, "kv_memory_mb": 16}, "needs 32 MiB of KV cache, but kv_memory_mb is 16"),
        ({"max_context": 9000}, "beyond the model's own 8192"),
        ({"kv_memory_mb": 0}, "kv_memory_mb is 0"),
        ({"kv_memory_mb": 900, "available_mb": 100}, "512 MiB does not fit: 100 MiB are available beside 300 MiB"),
    ],
)
def test_refusals_name_the_numbers(settings, message):
    with pytest.raises(ValueError, match=message):
        plan(**{"max_sequences": 16, **settings})
