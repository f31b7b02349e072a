"""A bounded map from keys to rows of arrays."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator


class Slots:
    """Gives every key a row number below `capacity`. The least recently used key gives up its row to a new one.

    clear: called with a row that changes hands, so that nothing of its last owner stays in it.
    """

    def __init__(self, capacity: int, clear: Callable[[int], None]) -> None:
        self._capacity, self._clear = capacity, clear
        self._rows: OrderedDict[Hashable, int] = OrderedDict()

    def row(self, key: Hashable) -> int:
        """The key's row, given to it now if it had none."""
        row = self._rows.get(key)
        if row is not None:
            self._rows.move_to_end(key)
            return row
        if len(self._rows) < self._capacity:
            row = len(self._rows)
        else:
            _, row = self._rows.popitem(last=False)
        self._clear(row)
        self._rows[key] = row
        return row

    def find(self, key: Hashable) -> int | None:
        return self._rows.get(key)

    def items(self) -> Iterator[tuple[Hashable, int]]:
        return iter(self._rows.items())
