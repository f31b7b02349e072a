"""The seam to a model: one packed forward over tokens of any sequences. Runners implement it, paid drafters use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from decodeloop.types import FloatArray, IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T packed tokens of S sequences: prefill chunks, decode rows and drafted rows side by side.

    tokens: [T] int32.
    positions: [T] int32, how many tokens of its sequence precede each token; what rotary embedding and windows see.
    slots: [T] int32, the row of `block_tables` that the token's sequence owns.
    block_tables: [S, max_blocks] int32, physical block of each logical block; -1 pads. Entry e of a slot lives in
        block block_tables[slot, e // block_tokens] at offset e % block_tokens.
    logit_rows: [R] int32, indices into the T tokens whose logits are wanted.
    vocabulary: [v] int32 token ids when only those logits are wanted; None for all V.
    hidden_layers: layers whose output is wanted at logit_rows (0 = embedding, L = last layer before the final norm).

    Chains: token i is written to entry positions[i] of its slot and attends to entries 0..positions[i], whatever else
    is in the batch. All writes of a layer come before its reads, so a sequence's chunk may stand in any order.

    Trees: siblings share a position but not an entry, so two more arrays are given (both, or neither).
    kv_positions: [T] int32, the entry each token is written to: the position for a chain's tokens, any entry at or
        after the slot's committed length, each used once, for tree tokens.
    parents: [T] int32, the batch index of a token's parent, earlier in the batch, of the same slot and one position
        below; -1: none. A token with parent -1 attends to entries 0..position-1 and its own, another to what its parent
        attends to and its own. So children of the last committed token may name its row, or -1.
    Once a path through the tree is accepted, `Runner.copy_kv` moves its entries down to their positions.
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    block_tables: IntArray
    logit_rows: IntArray
    vocabulary: IntArray | None = None
    hidden_layers: tuple[int, ...] = ()
    kv_positions: IntArray | None = None
    parents: IntArray | None = None


def block_tables(held: Sequence[Sequence[int]]) -> IntArray:
    """[S, max_blocks] int32, as a Batch wants them. held: each sequence's blocks."""
    tables = np.full((len(held), max(map(len, held))), -1, dtype=np.int32)
    for table, blocks in zip(tables, held, strict=True):
        table[: len(blocks)] = blocks
    return tables


@dataclass(frozen=True, slots=True)
class Forward:
    logits: FloatArray  # [R, V] or [R, v] float32; the caller may keep it until the next forward
    hidden: Mapping[int, FloatArray] = field(default_factory=dict)  # layer -> [R, H] float32


@dataclass(frozen=True, slots=True)
class RunnerInfo:
    """What a runner is. `batch_invariant`: a token's logits are bit for bit the same whatever else is in the batch."""

    name: str
    vocab_size: int
    hidden_size: int
    layers: int
    max_context: int  # positions the model was made for
    block_tokens: int  # positions in a KV block
    kv_block_bytes: int
    weight_bytes: int
    weight_format: str
    batch_invariant: bool
    device: str = "cpu"
    trees: bool = False  # takes batches with `parents`


class Runner(Protocol):
    """Executes one model. One thread at a time."""

    @property
    def info(self) -> RunnerInfo: ...

    def allocate_kv(self, blocks: int) -> None:
        """Reserve `blocks` KV blocks, dropping what was there. Raises MemoryError with the numbers."""
        ...

    def forward(self, batch: Batch) -> Forward:
        """Write the tokens' keys and values, return what was asked. Raises ValueError for a batch out of range."""
        ...

    def copy_kv(self, sources: IntArray, destinations: IntArray) -> None:
        """Copy KV entries, all read before any is written.

        sources, destinations: [N] physical entries, block * block_tokens + offset.
        """
        ...
