"""How the per-token part of a forward is cut into calls: all tokens at once, or tiles of one shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

TILE_ROWS = 16

RowFunction = Callable[..., Tensor]  # tensors of [T, ...] -> [T, ...], row by row


class Rows(Protocol):
    def map(self, function: RowFunction, *inputs: Tensor) -> Tensor:
        """function(*inputs), whose rows depend on their own inputs' rows alone."""
        ...


class Whole:
    """One call over all rows: fast. A row's last bits depend on how many others there are."""

    def map(self, function: RowFunction, *inputs: Tensor) -> Tensor:
        return function(*inputs)


class Tiles:
    """One call for every `rows` rows, the last ones padded: no call ever sees another shape."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def map(self, function: RowFunction, *inputs: Tensor) -> Tensor:
        count = len(inputs[0])
        spare = -count % self.rows
        if spare:
            inputs = tuple(torch.cat([x, x.new_zeros(spare, *x.shape[1:])]) for x in inputs)
        starts = range(0, count, self.rows)
        tiles = [function(*(x[start : start + self.rows].clone() for x in inputs)) for start in starts]
        return torch.cat(tiles)[:count]


def steady_tiles(function: RowFunction, *inputs: Tensor) -> Tiles:
    """Tiles of 16 rows where, on this machine, a row's result doesn't depend on its place in the tile; else of 1.

    Tried out, since no library promises it: tiles of 16 equal rows must come out as 16 equal rows, bit for bit.
    inputs: [N, ...] samples, each tried by itself.
    """
    for index in range(len(inputs[0])):
        same = [x[index : index + 1].repeat(TILE_ROWS, *[1] * (x.dim() - 1)) for x in inputs]
        result = function(*same)
        if not torch.equal(result, result[:1].expand_as(result)):
            return Tiles(1)
    return Tiles(TILE_ROWS)
