"""The only place where temperature, top-k, top-p, min-p, penalties, bans and grammars shape a distribution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from decodeloop.types import FloatArray, SamplingParams


class TokenMatcher(Protocol):
    """A grammar's position in its text. Provided by engine/text/grammar."""

    def allowed(self) -> FloatArray:
        """[V] bool: tokens that may come next (EOS among them where the text may end)."""
        ...

    def accept(self, token: int) -> bool:
        """Advance over `token`; False, and no change, when it may not come next."""
        ...

    def rollback(self, count: int) -> None: ...


class Distribution:
    """One row after everything the request asks: p, ready to draw from."""

    log_weights: FloatArray  # [V] unnormalised log p, -inf where excluded
    greedy: bool  # temperature 0: p is a point mass on the (lowest-id) maximum

    @property
    def probs(self) -> FloatArray:
        """[V] float64, sums to 1."""
        raise NotImplementedError


class SamplingState:
    """What the next row's p depends on beside the logits: counts, grammar, how many tokens are out.

    A value with advance / rollback: rows of a draft are processed by advancing over x_<i and rolling back; only
    `commit` advances for good.
    """

    def __init__(
        self,
        params: SamplingParams,
        prompt: Sequence[int],
        *,
        vocab_size: int,
        eos_ids: frozenset[int],
        matcher: TokenMatcher | None = None,
    ) -> None:
        raise NotImplementedError

    def advance(self, token: int) -> None:
        """Count `token` as output. A token that the grammar forbids makes the state `dead` until rolled back."""
        raise NotImplementedError

    def rollback(self, count: int) -> None:
        """Undo the last `count` advances."""
        raise NotImplementedError

    def distribution(self, logits: FloatArray) -> Distribution:
        """logits: [V] float32, raw. Raises FloatingPointError when they hold NaN or +inf, or nothing is left."""
        raise NotImplementedError


class Chance(Protocol):
    """The randomness of one choice of one request, as a function of position alone."""

    def coupled(self, p: Distribution, position: int) -> int:
        """argmax_v(log p(v) + G(seed, position, v)): the target's token at `position`, whoever asks."""
        ...

    def accept(self, probability: float, position: int) -> bool:
        """A coin for the draft token at `position`, independent of every other draw."""
        ...

    def draw(self, probs: FloatArray, position: int) -> int:
        """A recovered or bonus token at `position`, independent of the coins and of drafts."""
        ...

    def draft(self, q: Distribution, position: int) -> int:
        """A draft token from q, independent of everything the verifier draws."""
        ...
