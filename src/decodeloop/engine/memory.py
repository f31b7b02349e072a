"""What the engine will hold in memory, worked out before anything is allocated; speculation's memory tax included."""

from __future__ import annotations

from dataclasses import dataclass

from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import RunnerInfo

MIB = 1 << 20
SMALLEST_CONTEXT = 128
MOST_SPARE = 1 / 16  # of the pool


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes, and the sizes they buy. lookahead_bytes is the part of the KV pool that drafts may fill at once.

    spare_blocks: kept out of the prefix cache's hands for them.
    """

    weight_bytes: int
    kv_blocks: int
    kv_bytes: int
    max_context: int
    lookahead_bytes: int
    available_bytes: int
    spare_blocks: int


def plan_memory(info: RunnerInfo, settings: EngineSettings, available_bytes: int) -> MemoryPlan:
    """Size the KV pool within `kv_memory_mb`, and the context within the pool.

    Raises ValueError, with the numbers, when a sequence of the asked context can't fit, or the pool can't be had.
    """
    asked = settings.max_context
    if asked is not None and asked > info.max_context:
        raise ValueError(f"max_context {asked} is beyond the model's own {info.max_context}")
    affordable = settings.kv_memory_mb * MIB // info.kv_block_bytes
    context = min(info.max_context, affordable * info.block_tokens) if asked is None else asked
    if asked is None:
        context = max(context, min(SMALLEST_CONTEXT, info.max_context))
    blocks_a_sequence = -(-context // info.block_tokens)
    if blocks_a_sequence > affordable:
        needed_mb = -(-blocks_a_sequence * info.kv_block_bytes // MIB)
        raise ValueError(
            f"one sequence of {context} tokens needs {needed_mb} MiB of KV cache, but kv_memory_mb is "
            f"{settings.kv_memory_mb}: raise it, or lower max_context"
        )
    blocks = min(affordable, settings.max_sequences * blocks_a_sequence)
    kv_bytes = blocks * info.kv_block_bytes
    if kv_bytes > available_bytes:
        raise ValueError(
            f"the KV pool of {kv_bytes // MIB} MiB does not fit: {available_bytes // MIB} MiB are available beside "
            f"{info.weight_bytes // MIB} MiB of weights; lower kv_memory_mb"
        )
    lookahead = settings.max_sequences * settings.max_draft_len * info.kv_block_bytes // info.block_tokens
    drafts = settings.max_sequences if settings.drafters else 0
    spare = min(drafts * -(-settings.max_draft_len // info.block_tokens), int(MOST_SPARE * blocks))
    return MemoryPlan(info.weight_bytes, blocks, kv_bytes, context, min(lookahead, kv_bytes), available_bytes, spare)
