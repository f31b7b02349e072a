"""What the arrays of a Batch mean, for every runner written in Python."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.speculation.forward import Batch, RunnerInfo
from decodeloop.types import IntArray

Int64Array = npt.NDArray[np.int64]


def physical(block_table: IntArray, entries: IntArray, block_tokens: int) -> Int64Array:
    """Where entries of a slot lie in a pool of [blocks * block_tokens]. block_table: [max_blocks] of that slot."""
    return _place(block_table[entries // block_tokens], entries, block_tokens)


def written(batch: Batch, block_tokens: int) -> Int64Array:
    """[T] where each token's keys and values go in the pool."""
    entries = batch.positions if batch.kv_positions is None else batch.kv_positions
    return _place(batch.block_tables[batch.slots, entries // block_tokens], entries, block_tokens)


def _place(blocks: IntArray, entries: IntArray, block_tokens: int) -> Int64Array:
    places: Int64Array = blocks.astype(np.int64) * block_tokens + entries % block_tokens
    return places


def seen(batch: Batch, token: int) -> Int64Array:
    """[position + 1] the entries of its slot that a token attends to, in the order of their positions."""
    position = int(batch.positions[token])
    entries = np.arange(position + 1, dtype=np.int64)
    if batch.parents is None or batch.kv_positions is None:
        return entries
    while token >= 0:
        entries[batch.positions[token]] = batch.kv_positions[token]
        token = int(batch.parents[token])
    return entries


def check(batch: Batch, info: RunnerInfo, blocks: int) -> None:
    """Raises ValueError when the batch can't be run over a pool of `blocks` blocks."""
    count = len(batch.tokens)
    if not count:
        raise ValueError("a batch needs at least one token")
    if not len(batch.positions) == len(batch.slots) == count:
        raise ValueError("tokens, positions and slots differ in length")
    _within("tokens", batch.tokens, info.vocab_size)
    _within("positions", batch.positions, info.max_context)
    _within("slots", batch.slots, len(batch.block_tables))
    _within("logit_rows", batch.logit_rows, count)
    _within("hidden_layers", np.asarray(batch.hidden_layers, dtype=np.int64), info.layers + 1)
    if batch.vocabulary is not None:
        _within("vocabulary", batch.vocabulary, info.vocab_size)
    entries = batch.positions if batch.kv_positions is None else batch.kv_positions
    _within("KV entries", entries, batch.block_tables.shape[1] * info.block_tokens)
    targets = written(batch, info.block_tokens)
    _within("KV blocks", targets // info.block_tokens, blocks)
    if len(np.unique(targets)) != count:
        raise ValueError("two tokens of the batch would be written to the same KV entry")
    if batch.parents is not None or batch.kv_positions is not None:
        _check_tree(batch)


def check_copy(sources: IntArray, destinations: IntArray, entries: int) -> None:
    """Raises ValueError when KV entries can't be copied so within a pool of `entries`."""
    if len(sources) != len(destinations):
        raise ValueError(f"{len(sources)} sources for {len(destinations)} destinations")
    _within("sources", sources, entries)
    _within("destinations", destinations, entries)
    if len(np.unique(destinations)) != len(destinations):
        raise ValueError("two KV entries would be copied to the same place")


def _within(name: str, values: npt.NDArray[Any], limit: int) -> None:
    if len(values) and (values.min() < 0 or values.max() >= limit):
        bad = values[(values < 0) | (values >= limit)][0]
        raise ValueError(f"{name}: {bad} is not within 0..{limit - 1}")


def _check_tree(batch: Batch) -> None:
    if batch.parents is None or batch.kv_positions is None:
        raise ValueError("parents and kv_positions come together")
    if not len(batch.parents) == len(batch.kv_positions) == len(batch.tokens):
        raise ValueError("parents, kv_positions and tokens differ in length")
    children = np.flatnonzero(batch.parents >= 0)
    parents = batch.parents[children]
    if (parents >= children).any():
        raise ValueError("a token's parent must stand before it in the batch")
    if (batch.slots[parents] != batch.slots[children]).any():
        raise ValueError("a token and its parent must be of one slot")
    if (batch.positions[parents] + 1 != batch.positions[children]).any():
        raise ValueError("a token's position must be its parent's plus one")
    if (batch.kv_positions < batch.positions).any():
        raise ValueError("a token's KV entry must not lie below its position")
