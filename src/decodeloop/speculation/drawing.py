"""The coupled draw made where the logits are: what a runner may offer beside its forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from decodeloop.types import FloatArray


@dataclass(frozen=True, slots=True)
class PlainSampling:
    """p as a function of a row's logits alone: softmax(logits / temperature) of what min_p, top_k and top_p keep.

    temperature: 0 for its limit, where the filters don't matter. The filters are those of `SamplingParams`.
    """

    temperature: float
    min_p: float = 0.0
    top_k: int = 0
    top_p: float = 1.0


@dataclass(frozen=True, slots=True)
class CoupledRows:
    """Rows of one sequence whose p is a matter of their logits alone.

    rows: where they stand in the logits; row i has seen the drafted x_<i. drafted: len(rows) - 1 tokens or more.
    key: of the request's noise. position: of the token that the first row decides.
    """

    rows: slice
    drafted: tuple[int, ...]
    key: tuple[int, int]
    position: int
    sampling: PlainSampling


@dataclass(frozen=True, slots=True)
class CoupledTokens:
    """tokens: the target's, as long as the draft says the same, and the next. entropies: of the p of each, in nats."""

    tokens: tuple[int, ...]
    entropies: tuple[float, ...]


@runtime_checkable
class DrawsCoupled(Protocol):
    """A runner that draws. Its tokens are those of `SamplingState`, `RequestChance` and `CoupledVerifier`, always."""

    def draw_coupled(self, logits: FloatArray, asked: Sequence[CoupledRows]) -> list[CoupledTokens | None]:
        """Of each sequence; None where a row that had to be judged is no distribution (NaN, infinite, nothing left), or
        where what top_p keeps of it is a matter of how the reference rounds.

        logits: [R, V] float32, of this runner's forward. asked: no two of them share a row.
        Raises ValueError for rows out of range.
        """
        ...
