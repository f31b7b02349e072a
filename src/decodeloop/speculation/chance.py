"""The randomness of one choice of one request, as a function of where it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b
from typing import Protocol

import numpy as np

from decodeloop.speculation.distribution import Distribution
from decodeloop.speculation.noise import gumbel_argmax
from decodeloop.speculation.philox import philox
from decodeloop.types import FloatArray


class Chance(Protocol):
    """The randomness of one choice of one request, as a function of position (and block) alone.

    start: the position of the block's first row. Positions are judged again in the next block after a rejection, and a
    verdict may tell something about the coins and drafts behind it: each block has its own.
    """

    def coupled(self, p: Distribution, position: int) -> int:
        """argmax_v(log p(v) + G(seed, position, v)): the target's token at `position`, whoever asks."""
        ...

    def accept(self, probability: float, position: int, start: int) -> bool:
        """A coin for the draft token at `position`, independent of every other draw."""
        ...

    def draw(self, probs: FloatArray, position: int, start: int) -> int:
        """A recovered or bonus token at `position`, independent of the coins and of drafts. probs: [V], sums to 1."""
        ...

    def draft(self, q: Distribution, position: int, start: int) -> int:
        """A draft token from q, independent of everything the verifier draws."""
        ...


class Domain(IntEnum):
    """Which draw a Philox counter serves (its third word), so that no two share a bit."""

    COUPLED = 0
    COUPLED_LOW = 1
    ACCEPT = 2
    DRAW = 3
    DRAFT = 4


@dataclass(frozen=True, slots=True)
class RequestChance:
    """Noise keyed by seed, prompt and choice: n choices, many prompts under one seed and a continuation all differ."""

    key: tuple[int, int]

    @classmethod
    def of(cls, seed: int, prompt_tokens: Sequence[int], choice: int) -> RequestChance:
        """seed: 0 <= seed < 2^63; choice: index among the request's n.

        Raises ValueError for a seed out of range.
        """
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed {seed} is not in 0..2^63-1")
        digest = blake2b(digest_size=8, person=b"decodeloop/noise")
        digest.update(seed.to_bytes(8, "little") + choice.to_bytes(8, "little"))
        digest.update(np.asarray(prompt_tokens, dtype="<i8").tobytes())
        low, high = np.frombuffer(digest.digest(), dtype="<u4").tolist()
        return cls((low, high))

    def coupled(self, p: Distribution, position: int) -> int:
        return gumbel_argmax(p, self.key, position, Domain.COUPLED)

    def accept(self, probability: float, position: int, start: int) -> bool:
        return probability >= 1.0 or self._uniform(Domain.ACCEPT, position, start) < probability

    def draw(self, probs: FloatArray, position: int, start: int) -> int:
        return _inverse(probs, self._uniform(Domain.DRAW, position, start))

    def draft(self, q: Distribution, position: int, start: int) -> int:
        return _inverse(q.probs, self._uniform(Domain.DRAFT, position, start))

    def _uniform(self, domain: Domain, position: int, start: int) -> float:
        """(0, 1], 64 bits before rounding."""
        high, low, _, _ = philox((0, position, domain, start), self.key)
        return ((high << 32 | low) + 0.5) * 2.0**-64


def _inverse(probs: FloatArray, uniform: float) -> int:
    """The token whose interval of the cumulative distribution holds `uniform`; never one of probability 0."""
    cumulative = np.cumsum(probs)
    token = int(np.searchsorted(cumulative, uniform * cumulative[-1], side="right"))
    return token if token < len(probs) else int(np.flatnonzero(probs)[-1])
