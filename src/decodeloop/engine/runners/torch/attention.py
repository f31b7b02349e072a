"""Attention over entries gathered from a layer's paged pool."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from decodeloop.engine.models import ModelConfig
from decodeloop.engine.runners.torch.groups import Group, Span


class Attention:
    """Queries of the heads that share a KV head are stacked as rows, so keys and values are never repeated."""

    def __init__(self, config: ModelConfig) -> None:
        self._heads, self._kv_heads, self._head_dim = config.heads, config.kv_heads, config.head_dim
        self._scale = config.query_scale
        self._softcap = config.attention_softcap

    def attend(self, groups: Sequence[Group], queries: Tensor, pool: Tensor, *, window: bool) -> Tensor:
        """[T, heads, head_dim] -> [T, heads * head_dim]. pool: [entries, 2 kv_heads, head_dim], keys then values."""
        if groups[0].tokens is None:
            return self._group(groups[0], queries, pool, window=window)
        out = queries.new_empty(len(queries), self._heads * self._head_dim)
        for group in groups:
            assert group.tokens is not None
            out[group.tokens] = self._group(group, queries[group.tokens], pool, window=window)
        return out

    def _group(self, group: Group, queries: Tensor, pool: Tensor, *, window: bool) -> Tensor:
        span = group.window if window else group.ordinary
        assert span is not None
        held = pool.index_select(0, span.places).view(group.sequences, -1, 2 * self._kv_heads, self._head_dim)
        keys = held[:, :, : self._kv_heads].transpose(1, 2)
        values = held[:, :, self._kv_heads :].transpose(1, 2)
        stacked = queries.view(group.sequences, group.queries, self._kv_heads, -1, self._head_dim)
        stacked = stacked.transpose(1, 2).flatten(2, 3)
        found = self._scored(stacked, keys, values, span)
        found = found.view(group.sequences, self._kv_heads, group.queries, -1, self._head_dim).transpose(1, 2)
        return found.reshape(len(queries), self._heads * self._head_dim)

    def _scored(self, queries: Tensor, keys: Tensor, values: Tensor, span: Span) -> Tensor:
        if self._softcap is None:
            return F.scaled_dot_product_attention(queries, keys, values, attn_mask=span.mask, scale=self._scale)
        scores = (queries @ keys.transpose(-1, -2)).float() * self._scale
        scores = torch.tanh(scores / self._softcap) * self._softcap
        if span.mask is not None:
            scores = scores + span.mask
        return torch.softmax(scores, dim=-1).to(values.dtype) @ values
