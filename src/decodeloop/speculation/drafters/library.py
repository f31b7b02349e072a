"""Finished outputs, searchable, each organization's apart: what one wrote shows in no other's drafts or timing."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decodeloop.speculation.lookup import Automaton


@dataclass(slots=True)
class Shelf:
    """One organization's texts, in two generations: an automaton cannot forget, so the older is dropped whole."""

    recent: Automaton
    older: Automaton | None = None

    @property
    def size(self) -> int:
        return self.recent.size + (self.older.size if self.older else 0)


class Library:
    """At most `capacity` tokens of all organizations' outputs; the least recently used organization's go first."""

    def __init__(self, capacity: int, make: Callable[[], Automaton]) -> None:
        self._capacity, self._make = capacity, make
        self._shelves: OrderedDict[str, Shelf] = OrderedDict()

    @property
    def size(self) -> int:
        return sum(shelf.size for shelf in self._shelves.values())

    def add(self, organization: str, output: Sequence[int]) -> None:
        """Keep an output, or its last part where it alone would fill a generation."""
        generation = self._capacity // 2
        kept = output[max(0, len(output) - generation) :]
        if not kept:
            return
        shelf = self._shelves.setdefault(organization, Shelf(self._make()))
        self._shelves.move_to_end(organization)
        if shelf.recent.size + len(kept) > generation:
            shelf.recent, shelf.older = self._make(), shelf.recent
        shelf.recent.begin_text()
        shelf.recent.read(kept)
        while self.size > self._capacity:
            self._drop()

    def automata(self, organization: str) -> tuple[Automaton, ...]:
        """What holds the organization's outputs, the most recent first."""
        shelf = self._shelves.get(organization)
        if shelf is None:
            return ()
        self._shelves.move_to_end(organization)
        return (shelf.recent,) if shelf.older is None else (shelf.recent, shelf.older)

    def memory_bytes(self) -> int:
        return sum(
            automaton.memory_bytes()
            for shelf in self._shelves.values()
            for automaton in (shelf.recent, shelf.older)
            if automaton is not None
        )

    def _drop(self) -> None:
        """The least recently used organization's older generation, or all it has when it has but one."""
        organization, shelf = next(iter(self._shelves.items()))
        if shelf.older is None:
            del self._shelves[organization]
        else:
            shelf.older = None
