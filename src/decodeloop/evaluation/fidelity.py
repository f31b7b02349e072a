"""How near one execution of a model is to another: divergence, agreement, perplexity, over given positions of text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Positions:
    """Of each position of a text: KL(reference, other) in nats, whether both would choose the same token, and the
    nats that each is surprised by the token that really comes; NaN where none comes."""

    divergence: Floats
    same_choice: npt.NDArray[np.bool_]
    reference_nats: Floats
    nats: Floats


@dataclass(frozen=True, slots=True)
class Fidelity:
    """divergence: KL(reference, other) in nats, its mean and 99th percentile. agreement: share of positions with the
    same likeliest token. perplexity_ratio: of the other to the reference on the same text."""

    positions: int
    divergence: float
    divergence_p99: float
    agreement: float
    perplexity_ratio: float

    @classmethod
    def of(cls, texts: Iterable[Positions]) -> Fidelity:
        parts = list(texts)
        divergence = np.concatenate([part.divergence for part in parts])
        excess = np.concatenate([part.nats - part.reference_nats for part in parts])
        return cls(
            positions=len(divergence),
            divergence=float(divergence.mean()),
            divergence_p99=float(np.quantile(divergence, 0.99)),
            agreement=float(np.concatenate([part.same_choice for part in parts]).mean()),
            perplexity_ratio=float(np.exp(np.nanmean(excess))),
        )


@dataclass(frozen=True, slots=True)
class FidelityBounds:
    """The most that each measure may be (agreement: the least; the perplexity's ratio either way)."""

    divergence: float
    divergence_p99: float
    agreement: float
    perplexity_ratio: float

    def violations(self, found: Fidelity) -> list[str]:
        """What is out of bounds, in words; a measure that is no number is."""
        off = abs(np.log(found.perplexity_ratio)) if found.perplexity_ratio > 0 else np.inf
        measures = {
            "divergence": (found.divergence, found.divergence <= self.divergence),
            "divergence_p99": (found.divergence_p99, found.divergence_p99 <= self.divergence_p99),
            "agreement": (found.agreement, found.agreement >= self.agreement),
            "perplexity_ratio": (found.perplexity_ratio, off <= np.log(self.perplexity_ratio)),
        }
        return [
            f"{name} is {value:.5g}, bound {getattr(self, name):.5g}"
            for name, (value, kept) in measures.items()
            if not kept
        ]


class Reference:
    """Logits [T, V] over a text of T tokens, to which others' are compared; row i predicts tokens[i + 1]."""

    def __init__(self, logits: npt.ArrayLike, tokens: Sequence[int]) -> None:
        """Raises ValueError when the rows are not as many as the tokens."""
        self._log_p = _log_softmax(logits)
        if len(self._log_p) != len(tokens):
            raise ValueError(f"logits of shape {self._log_p.shape} do not fit {len(tokens)} tokens")
        self._p = np.exp(self._log_p)
        self._following = np.arange(len(tokens) - 1), np.asarray(tokens[1:], dtype=np.intp)

    def compare(self, logits: npt.ArrayLike) -> Positions:
        """Raises ValueError for logits of another shape."""
        log_q = _log_softmax(logits)
        if log_q.shape != self._log_p.shape:
            raise ValueError(f"logits of shapes {self._log_p.shape} and {log_q.shape} can't be compared")
        with np.errstate(invalid="ignore"):  # a token that both forbid: -inf less -inf, and counts nothing
            terms = self._p * (self._log_p - log_q)
        terms[self._p == 0.0] = 0.0
        return Positions(
            divergence=terms.sum(axis=-1),
            same_choice=self._log_p.argmax(axis=-1) == log_q.argmax(axis=-1),
            reference_nats=self._nats(self._log_p),
            nats=self._nats(log_q),
        )

    def _nats(self, log_probabilities: Floats) -> Floats:
        return np.append(-log_probabilities[self._following], np.nan)


def _log_softmax(logits: npt.ArrayLike) -> Floats:
    """[T, V] in double precision."""
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"logits must be [T, V], not of shape {values.shape}")
    shifted: Floats = values - values.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted
