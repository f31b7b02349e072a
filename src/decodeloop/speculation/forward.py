"""The seam to a model: one packed forward over tokens of any sequences. Runners implement it, paid drafters use it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from decodeloop.types import FloatArray

IntArray = npt.NDArray[np.integer[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """T packed tokens of S sequences: prefill chunks, decode rows and drafted rows side by side.

    tokens, positions: [T] int32. Token i is written to the KV cache at (slots[i], positions[i]) and attends to
        positions 0..positions[i] of its slot, whatever else is in the batch.
    slots: [T] int32, the row of `block_tables` that the token's sequence owns.
    block_tables: [S, max_blocks] int32, physical block of each logical block; -1 pads. Position p of a slot lives in
        block block_tables[slot, p // block_tokens] at offset p % block_tokens.
    logit_rows: [R] int32, indices into the T tokens whose logits are wanted.
    vocabulary: [v] int32 token ids when only those logits are wanted; None for all V.
    hidden_layers: layers whose output is wanted at logit_rows (0 = embedding, L = last layer before the final norm).
    parents: [T] int32 for a token tree: a drafted token sees its slot's positions below `tree_start` of that slot, and
        its ancestors in the batch (-1: none in the batch); None for chains.
    """

    tokens: IntArray
    positions: IntArray
    slots: IntArray
    block_tables: IntArray
    logit_rows: IntArray
    vocabulary: IntArray | None = None
    hidden_layers: tuple[int, ...] = ()
    parents: IntArray | None = None


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


class Runner(Protocol):
    """Executes one model. One thread at a time."""

    @property
    def info(self) -> RunnerInfo: ...

    def allocate_kv(self, blocks: int) -> None:
        """Reserve `blocks` KV blocks, dropping what was there. Raises MemoryError with the numbers."""
        ...

    def forward(self, batch: Batch) -> Forward:
        """Write the tokens' keys and values, return what was asked."""
        ...
