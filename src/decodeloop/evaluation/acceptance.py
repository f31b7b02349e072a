"""What drafts a simulated engine gets, and how much of each the target agrees with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from decodeloop.evaluation.workload import Arrival
from decodeloop.types import FloatArray, IntArray, RequestClass

CLASSES = tuple(RequestClass)
CLASS_INDEX = {request_class: i for i, request_class in enumerate(CLASSES)}


@dataclass(frozen=True, slots=True)
class Drafts:
    """offered: [N] tokens that the drafter has to say. right: [N] of them that the target agrees with, from the first.

    confidence: [N, K] survival by the drafter's word, 0 beyond what is offered.
    """

    offered: IntArray
    right: IntArray
    confidence: FloatArray

    def capped(self, most: IntArray) -> Drafts:
        """No draft longer than `most` [N]."""
        offered = np.minimum(self.offered, most)
        within = np.arange(self.confidence.shape[1]) < offered[:, None]
        return Drafts(offered, np.minimum(self.right, offered), np.where(within, self.confidence, 0.0))


class Acceptance(Protocol):
    """depth: the longest draft there is."""

    depth: int

    def assign(self, arrival: Arrival, rng: np.random.Generator) -> int:
        """A new request's nature: a number that `draw` knows. Raises ValueError for a class it knows nothing of."""
        ...

    def draw(self, natures: IntArray, produced: IntArray, rng: np.random.Generator) -> Drafts:
        """A step's drafts for requests of these natures that have produced so many tokens. [N] each."""
        ...


class BySurvival:
    """Every draft has `depth` tokens and survives by its class's law alone."""

    def __init__(self, survival: Mapping[RequestClass, Sequence[float]]) -> None:
        """survival: per class P(the first k+1 tokens are all right); a class that isn't named never has a token right.

        Raises ValueError where it rises or is no probability.
        """
        self.depth = max((len(values) for values in survival.values()), default=1)
        self._survival = np.zeros((len(CLASSES), self.depth))
        for name, values in survival.items():
            if list(values) != sorted(values, reverse=True) or not all(0.0 <= v <= 1.0 for v in values):
                raise ValueError(f"{name}: survival falls from at most 1 to at least 0, it isn't {list(values)}")
            self._survival[CLASS_INDEX[name], : len(values)] = values

    def assign(self, arrival: Arrival, rng: np.random.Generator) -> int:
        return CLASS_INDEX[arrival.request_class]

    def draw(self, natures: IntArray, produced: IntArray, rng: np.random.Generator) -> Drafts:
        survival = self._survival[natures]
        right = (rng.random(len(natures))[:, None] < survival).sum(axis=1)
        return Drafts(np.full(len(natures), self.depth), right, survival)


@dataclass(frozen=True, slots=True)
class Draft:
    """One recorded draft: tokens offered, how many were right, the drafter's survival confidence."""

    offered: int
    right: int
    confidence: Sequence[float]


@dataclass(frozen=True, slots=True)
class History:
    """A recorded request's drafts."""

    request_class: RequestClass
    drafts: Sequence[Draft]


class _Table:
    """Drafts of many requests in three arrays."""

    def __init__(self, histories: Iterable[History]) -> None:
        self.histories = [history for history in histories if history.drafts]
        if not self.histories:
            raise ValueError("no request of the record has a draft to learn from")
        drafts = [draft for history in self.histories for draft in history.drafts]
        self.depth = max(1, *(draft.offered for draft in drafts))
        self.counts = np.array([len(history.drafts) for history in self.histories])
        self.starts = np.cumsum(self.counts) - self.counts
        self.offered = np.array([draft.offered for draft in drafts])
        self.right = np.array([min(draft.right, draft.offered) for draft in drafts])
        self.confidence = np.zeros((len(drafts), self.depth))
        for row, draft in zip(self.confidence, drafts, strict=True):
            row[: draft.offered] = 1.0
            row[: len(draft.confidence)] = draft.confidence[: draft.offered]
        self.of_class: dict[RequestClass, list[int]] = {}
        for i, history in enumerate(self.histories):
            self.of_class.setdefault(history.request_class, []).append(i)

    def some(self, request_class: RequestClass, rng: np.random.Generator) -> int:
        known = self.of_class.get(request_class)
        if known is None:
            raise ValueError(f"no drafts of class {request_class}; there are some of {', '.join(self.of_class)}")
        return known[int(rng.integers(len(known)))]

    def take(self, rows: IntArray) -> Drafts:
        return Drafts(self.offered[rows], self.right[rows], self.confidence[rows])


class Recorded:
    """A request behaves as a recorded one, the one it names or some of its class: each step, as some step of that."""

    def __init__(self, histories: Iterable[History]) -> None:
        self._table = _Table(histories)
        self.depth = self._table.depth

    def assign(self, arrival: Arrival, rng: np.random.Generator) -> int:
        return self._table.some(arrival.request_class, rng) if arrival.text is None else arrival.text

    def draw(self, natures: IntArray, produced: IntArray, rng: np.random.Generator) -> Drafts:
        chosen = self._table.starts[natures] + (rng.random(len(natures)) * self._table.counts[natures]).astype(np.int64)
        return self._table.take(chosen)


class Texts:
    """A request has a known text: its i-th draft is the one made when i tokens were out. Nothing is left to chance.

    Arrivals name their text; those that don't get some text of their class.
    """

    def __init__(self, histories: Sequence[History]) -> None:
        self._table = _Table(histories)
        self.depth = self._table.depth

    def assign(self, arrival: Arrival, rng: np.random.Generator) -> int:
        return self._table.some(arrival.request_class, rng) if arrival.text is None else arrival.text

    def draw(self, natures: IntArray, produced: IntArray, rng: np.random.Generator) -> Drafts:
        place = np.minimum(produced, self._table.counts[natures] - 1)
        return self._table.take(self._table.starts[natures] + place)
