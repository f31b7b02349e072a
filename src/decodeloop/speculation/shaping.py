"""What a request asks of every row alike: biases and bans. Fixed for the request, shared by all its states."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from decodeloop.speculation.counts import columns_of
from decodeloop.types import BoolArray, FloatArray, IntArray, RequestRefused, SamplingParams


@dataclass(frozen=True, eq=False)
class Shaping:
    """ending_ids: tokens that end the output by themselves; they are excluded while it is shorter than min_tokens."""

    idle: bool  # nothing is asked of any row
    ending_ids: frozenset[int]
    bias_ids: IntArray
    biases: FloatArray
    early_ids: IntArray  # ending_ids, ascending
    excluded: BoolArray | None  # [V]

    @classmethod
    def of(cls, params: SamplingParams, vocab_size: int, eos_ids: frozenset[int]) -> Shaping:
        """Raises RequestRefused for a token id outside the vocabulary."""
        bias_ids = _checked([token for token, _ in params.logit_bias], vocab_size, "logit_bias")
        allowed = _checked(params.allowed_token_ids, vocab_size, "allowed_token_ids")
        banned = _checked(params.banned_token_ids, vocab_size, "banned_token_ids")
        excluded = None
        if len(allowed) or len(banned):
            excluded = np.full(vocab_size, len(allowed) > 0)
            excluded[allowed] = False
            excluded[banned] = True
        ending_ids = frozenset(params.stop_token_ids) | (frozenset() if params.ignore_eos else eos_ids)
        return cls(
            idle=excluded is None and len(bias_ids) == 0 and params.logit_hook is None,
            ending_ids=ending_ids,
            bias_ids=bias_ids,
            biases=np.array([bias for _, bias in params.logit_bias], dtype=np.float64),
            early_ids=np.array(sorted(ending_ids), dtype=np.int64),
            excluded=excluded,
        )

    def bias(self, row: FloatArray, token_ids: IntArray | None) -> None:
        """In place. row: [v] float64, of the ids `token_ids` (None: 0..v-1)."""
        columns, found = columns_of(self.bias_ids, len(row), token_ids)
        np.add.at(row, columns, self.biases[found])

    def exclude(self, row: FloatArray, token_ids: IntArray | None, *, early: bool) -> None:
        """In place: -inf on what is never allowed and, `early`, on what would end the output."""
        if self.excluded is not None:
            row[self.excluded if token_ids is None else self.excluded[token_ids]] = -np.inf
        if early:
            row[columns_of(self.early_ids, len(row), token_ids)[0]] = -np.inf


def _checked(ids: Iterable[int], vocab_size: int, param: str) -> IntArray:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise RequestRefused(f"{param}: token id {token} is not in 0..{vocab_size - 1}", param=param)
    return np.array(list(ids), dtype=np.int64)
