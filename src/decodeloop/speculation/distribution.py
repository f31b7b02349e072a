"""What a row of logits becomes: a distribution over target token ids, ready to draw from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from decodeloop.types import FloatArray, IntArray


class NothingLeft(FloatingPointError):
    """Every token of a row is excluded by what the request asks."""


@dataclass(frozen=True, eq=False)
class Distribution:
    """One row after everything the request asks: p (or a drafter's q).

    log_weights: [v] float64, log p up to a constant; maximum 0, -inf where excluded.
    vocab_size: V, the size of the target's vocabulary.
    token_ids: [v] strictly ascending target ids that log_weights belong to; None: v == V, ids 0..V-1.
    """

    log_weights: FloatArray
    vocab_size: int
    token_ids: IntArray | None = None

    @classmethod
    def of(cls, probs: FloatArray) -> Distribution:
        """probs: [V] non-negative, not all zero, in any scale."""
        with np.errstate(divide="ignore"):
            log_weights = np.log(np.asarray(probs, dtype=np.float64))
        return cls(log_weights - log_weights.max(), len(log_weights))

    @classmethod
    def point(cls, token: int, vocab_size: int) -> Distribution:
        """All mass on `token`."""
        return cls(np.zeros(1), vocab_size, np.array([token]))

    @property
    def greedy(self) -> bool:
        """p is a point mass."""
        return len(self.log_weights) == 1

    @property
    def likeliest(self) -> int:
        """The lowest id among the maxima."""
        return self.token_at(int(self.log_weights.argmax()))

    def token_at(self, column: int) -> int:
        """The target id that `log_weights[column]` belongs to."""
        return column if self.token_ids is None else int(self.token_ids[column])

    def prob(self, token: int) -> float:
        """p(token); 0 for an id outside the vocabulary."""
        if not 0 <= token < self.vocab_size:
            return 0.0
        if self.token_ids is None:
            return float(self._column_probs[token])
        column = int(np.searchsorted(self.token_ids, token))
        found = column < len(self.token_ids) and self.token_ids[column] == token
        return float(self._column_probs[column]) if found else 0.0

    @cached_property
    def probs(self) -> FloatArray:
        """[V] float64, sums to 1."""
        if self.token_ids is None:
            return self._column_probs
        probs = np.zeros(self.vocab_size)
        probs[self.token_ids] = self._column_probs
        return probs

    def entropy(self) -> float:
        """Nats, to about 1e-5."""
        shifted = self.log_weights.astype(np.float32)
        weights = np.exp(shifted)
        total = float(weights.sum(dtype=np.float64))
        return max(0.0, float(np.log(total) - np.dot(weights, np.maximum(shifted, -200.0)) / total))

    @cached_property
    def _column_probs(self) -> FloatArray:
        weights = np.exp(self.log_weights)
        probs: FloatArray = weights / weights.sum()
        return probs
