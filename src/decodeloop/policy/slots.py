"""Who owns which row of the learned arrays, and sums over the rows that labels belong to."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, ValuesView

import numpy as np

from decodeloop.types import FloatArray, IntArray, RequestClass

Leaf = tuple[str, RequestClass, str]  # tenant, class, drafter
Clear = Callable[[int], None]
CAPACITY = 1024  # of leaves, and of (tenant, drafter)


class Leaves:
    """A row for every (tenant, class, drafter) and one for every (tenant, drafter), the least recently used reused.

    tenant_of: [capacity] each leaf's tenant row. Learners are told when a row changes hands, so that nothing of its
    last owner stays in it. generation: a row number is good as long as this stays the same.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity, self.generation = capacity, 0
        self.tenant_of = np.zeros(capacity, dtype=np.int64)
        self._leaves: OrderedDict[Leaf, int] = OrderedDict()
        self._tenants: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._clear_leaf: list[Clear] = []
        self._clear_tenant: list[Clear] = []

    def tell(self, clear_leaf: Clear, clear_tenant: Clear) -> None:
        self._clear_leaf.append(clear_leaf)
        self._clear_tenant.append(clear_tenant)

    def row(self, tenant: str, request_class: RequestClass, drafter: str) -> int:
        leaf = (tenant, request_class, drafter)
        row = self._leaves.get(leaf)
        if row is not None:
            self._leaves.move_to_end(leaf)
            return row
        tenant_row = self._tenant(tenant, drafter)
        if len(self._leaves) >= self.capacity:
            self._leaves.popitem(last=False)
            self.generation += 1
        row = _free_row(self._leaves.values(), len(self._leaves))
        self._leaves[leaf] = row
        self.tenant_of[row] = tenant_row
        for clear in self._clear_leaf:
            clear(row)
        return row

    def items(self) -> Iterator[tuple[Leaf, int]]:
        return iter(list(self._leaves.items()))

    def _tenant(self, tenant: str, drafter: str) -> int:
        key = (tenant, drafter)
        if key in self._tenants:
            self._tenants.move_to_end(key)
            return self._tenants[key]
        if len(self._tenants) >= self.capacity:
            self._forget_oldest_tenant()
        row = _free_row(self._tenants.values(), len(self._tenants))
        self._tenants[key] = row
        for clear in self._clear_tenant:
            clear(row)
        return row

    def _forget_oldest_tenant(self) -> None:
        """With its leaves, which would otherwise lean on whoever gets its row."""
        (tenant, drafter), _ = self._tenants.popitem(last=False)
        for leaf in [leaf for leaf in self._leaves if (leaf[0], leaf[2]) == (tenant, drafter)]:
            del self._leaves[leaf]
        self.generation += 1


def _free_row(taken: ValuesView[int], count: int) -> int:
    """The next row, or a hole that a forgotten owner left."""
    used = set(taken)
    return next(row for row in range(count + 1) if row not in used)


def membership(rows: IntArray) -> tuple[IntArray, FloatArray]:
    """[L] rows -> the U distinct ones, and [U, L] 1.0 where a label belongs to one: `member @ values` sums per row."""
    distinct = np.unique(rows)
    return distinct, (distinct[:, None] == rows).astype(np.float64)
