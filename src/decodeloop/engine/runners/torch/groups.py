"""Which KV entries a batch's tokens attend to, cut into groups that one attention call can serve."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from decodeloop.engine.runners.packing import Int64Array, physical, seen
from decodeloop.speculation.forward import Batch
from decodeloop.types import BoolArray


@dataclass(frozen=True, slots=True)
class Span:
    """places: [S * C] where C entries of each of S sequences lie in the pool. mask: [S, 1, Q * heads a KV head, C]
    zero or -inf, added to the scores of Q queries; None: all is seen."""

    places: Tensor
    mask: Tensor | None


@dataclass(frozen=True, slots=True)
class Group:
    """S sequences with Q tokens each. tokens: [S * Q] batch indices, None: the whole batch in order.

    ordinary, window: what layers without and with a sliding window read; window is None in models without such layers.
    """

    sequences: int
    queries: int
    tokens: Tensor | None
    ordinary: Span
    window: Span | None


@dataclass(frozen=True, slots=True)
class Layout:
    """What planning needs to know of model and pool."""

    block_tokens: int
    window: int | None
    heads_per_kv: int
    dtype: torch.dtype
    device: torch.device

    def span(self, places: Int64Array, hidden: BoolArray | None = None) -> Span:
        """places: [S, C]. hidden: [S, Q, C] what may not be seen."""
        on_device = torch.from_numpy(places.ravel()).to(self.device)
        if hidden is None or not hidden.any():
            return Span(on_device, None)
        mask = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(torch.from_numpy(hidden), float("-inf"))
        return Span(on_device, mask.repeat_interleave(self.heads_per_kv, dim=1)[:, None].to(self.device))

    def tokens(self, tokens: Int64Array) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(tokens).ravel()).to(self.device)


class Planner(Protocol):
    def groups(self, batch: Batch) -> list[Group]: ...


class SinglePlanner:
    """Every token by itself, in shapes that its own position alone decides: batch-invariant."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def groups(self, batch: Batch) -> list[Group]:
        return [self._group(batch, token) for token in range(len(batch.tokens))]

    def _group(self, batch: Batch, token: int) -> Group:
        layout = self._layout
        places = physical(batch.block_tables[batch.slots[token]], seen(batch, token), layout.block_tokens)
        window = None if layout.window is None else layout.span(places[-layout.window :].copy())
        return Group(1, 1, layout.tokens(np.asarray([token])), layout.span(places), window)


class PackedPlanner:
    """Sequences with equally many tokens and about as long a context go together, padded to the longest of them."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def groups(self, batch: Batch) -> list[Group]:
        order, starts, counts = _by_slot(batch)
        if batch.parents is not None:
            runs = [order[start : start + count] for start, count in zip(starts, counts, strict=True)]
            return [self._tree(batch, run) for run in runs]
        ends = np.maximum.reduceat(batch.positions[order], starts).astype(np.int64) + 1
        buckets = np.frexp(ends - 0.5)[1]  # the power of two that holds the context
        members: dict[tuple[int, int], list[int]] = {}
        for sequence, key in enumerate(zip(counts.tolist(), buckets.tolist(), strict=True)):
            members.setdefault(key, []).append(sequence)
        return [
            self._chains(batch, order[starts[sequences][:, None] + np.arange(queries)], ends[sequences])
            for (queries, _), sequences in members.items()
        ]

    def _chains(self, batch: Batch, tokens: Int64Array, ends: Int64Array) -> Group:
        """tokens: [S, Q] batch indices. ends: [S] lengths of the contexts, the tokens themselves included."""
        window = None if self._layout.window is None else self._chain_span(batch, tokens, ends, self._layout.window)
        return self._group(batch, tokens, self._chain_span(batch, tokens, ends, None), window)

    def _chain_span(self, batch: Batch, tokens: Int64Array, ends: Int64Array, window: int | None) -> Span:
        positions = batch.positions[tokens].astype(np.int64)
        low = np.zeros_like(ends) if window is None else np.maximum(positions.min(axis=1) - window + 1, 0)
        entries = low[:, None] + np.arange((ends - low).max())
        beyond = entries >= ends[:, None]
        entries = np.where(beyond, low[:, None], entries)  # pad with an own entry: another's might be NaN
        tables = batch.block_tables[batch.slots[tokens[:, 0]]]
        blocks = np.take_along_axis(tables, entries // self._layout.block_tokens, axis=1).astype(np.int64)
        places = blocks * self._layout.block_tokens + entries % self._layout.block_tokens
        if len(ends) == positions.shape[1] == 1:  # one token sees all that was gathered for it
            return self._layout.span(places)
        hidden = beyond[:, None] | (entries[:, None] > positions[:, :, None])
        if window is not None:
            hidden |= entries[:, None] <= positions[:, :, None] - window
        return self._layout.span(places, hidden)

    def _tree(self, batch: Batch, tokens: Int64Array) -> Group:
        paths = [seen(batch, int(token)) for token in tokens]
        window = self._layout.window
        reach = None if window is None else self._tree_span(batch, tokens, [path[-window:] for path in paths])
        return self._group(batch, tokens[None], self._tree_span(batch, tokens, paths), reach)

    def _tree_span(self, batch: Batch, tokens: Int64Array, paths: Sequence[Int64Array]) -> Span:
        entries = np.unique(np.concatenate(paths))
        hidden = np.ones((1, len(paths), len(entries)), dtype=np.bool_)
        for query, path in enumerate(paths):
            hidden[0, query, np.searchsorted(entries, path)] = False
        places = physical(batch.block_tables[batch.slots[tokens[0]]], entries, self._layout.block_tokens)
        return self._layout.span(places, hidden)

    def _group(self, batch: Batch, tokens: Int64Array, ordinary: Span, window: Span | None) -> Group:
        whole = tokens.size == len(batch.tokens) and np.array_equal(tokens.ravel(), np.arange(tokens.size))
        sequences, queries = tokens.shape
        return Group(sequences, queries, None if whole else self._layout.tokens(tokens), ordinary, window)


def _by_slot(batch: Batch) -> tuple[Int64Array, Int64Array, Int64Array]:
    """The batch's tokens, slot after slot: [T] indices; where each slot begins in them, and how many tokens it has."""
    order = np.argsort(batch.slots, kind="stable")
    found: tuple[Any, ...] = np.unique(batch.slots[order], return_index=True, return_counts=True)
    return order, found[1], found[2]
