"""The target's rows of one sequence in one step: processed for the verifier, remembered for what is reported."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.engine.text import Tokenizer
from decodeloop.speculation.sampling import (
    Distribution,
    SamplingState,
    log_probabilities,
    top_log_probabilities,
)
from decodeloop.types import FloatArray, TokenLogprob


class VerifyRows:
    """Implements TargetRows. Leaves the sampling state as it found it once `close`d.

    logits: [R, V] raw; row i decides the token at `start + i`. drafted: the submitted tokens, R - 1 or more of them.
    """

    def __init__(self, state: SamplingState, logits: FloatArray, drafted: Sequence[int], start: int) -> None:
        self._state, self._logits, self._drafted, self._start = state, logits, drafted, start
        self._seen: list[Distribution] = []
        self._advanced = 0

    def __getitem__(self, i: int) -> Distribution:
        while len(self._seen) <= i:
            row = len(self._seen)
            if row > 0:
                self._state.advance(self._drafted[row - 1])
                self._advanced += 1
            self._seen.append(self._state.distribution(self._logits[row]))
        return self._seen[i]

    def position(self, i: int) -> int:
        return self._start + i

    def close(self) -> None:
        self._state.rollback(self._advanced)
        self._advanced = 0

    def entropies(self, count: int) -> tuple[float, ...]:
        """Nats, of p on the first `count` rows."""
        return tuple(row.entropy() for row in self._seen[:count])

    def logprob(self, i: int, token: int, tops: int, tokenizer: Tokenizer) -> TokenLogprob:
        """The target's raw log-probability of `token` at row i, and of the `tops` likeliest tokens."""
        value = float(log_probabilities(self._logits[i], [token])[0])
        likeliest = top_log_probabilities(self._logits[i], tops)
        return _named(tokenizer, token, value, tuple(_named(tokenizer, other, theirs) for other, theirs in likeliest))


def _named(tokenizer: Tokenizer, token: int, value: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
    return TokenLogprob(token, tokenizer.token_text(token), tokenizer.token_bytes(token), value, top)
