"""Per-sequence state that is bounded: the least recently used goes when there is no room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


class RecentlyUsed(Generic[T]):
    """sequence_id -> state, at most `limit` of them. What was dropped is made anew from its tokens when asked again."""

    def __init__(self, make: Callable[[], T], limit: int) -> None:
        if limit < 1:
            raise ValueError(f"room for {limit} sequences; at least 1 is needed")
        self._make, self._limit = make, limit
        self._states: OrderedDict[int, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[T]:
        return iter(self._states.values())

    def get(self, sequence_id: int) -> T:
        """The sequence's state, now the most recently used."""
        if sequence_id not in self._states:
            if len(self._states) == self._limit:
                self._states.popitem(last=False)
            self._states[sequence_id] = self._make()
        self._states.move_to_end(sequence_id)
        return self._states[sequence_id]

    def pop(self, sequence_id: int) -> T | None:
        return self._states.pop(sequence_id, None)
