"""A safetensors file's header; the tensors stay on disk, memory-mapped.

Source: the format's definition (8 bytes of length, a JSON header, the data). Read here because numpy has no bfloat16.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelError

_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """data: uint8, the values row by row as stored."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: npt.NDArray[np.uint8]

    def float32(self) -> npt.NDArray[np.float32]:
        """The values, a new array of `shape`. Raises ModelError for a type that is not a plain float."""
        if self.format == "F32":
            return self.data.view("<f4").astype(np.float32).reshape(self.shape)
        if self.format == "F16":
            return self.data.view("<f2").astype(np.float32).reshape(self.shape)
        if self.format == "BF16":  # the upper half of a float32
            return (self.data.view("<u2").astype(np.uint32) << 16).view(np.float32).reshape(self.shape)
        raise ModelError(f"tensor {self.name} has type {self.format}; known are {', '.join(_BYTES)}")


def read_safetensors(path: Path) -> dict[str, SafeTensor]:
    """Parse the header and map the tensors. Raises ModelError: not a safetensors file, or one cut short."""
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        start = _LENGTH_BYTES + length
        if size < _LENGTH_BYTES or start > size:
            raise ModelError(f"{path}: not a safetensors file, or cut short")
        try:
            header = json.loads(file.read(length))
            places = [_place(name, entry) for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{path}: not a safetensors file: {error}") from error
    mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    tensors = {}
    for place in places:
        if start + place.end > size:
            raise ModelError(f"{path}: cut short: tensor {place.name} ends at byte {start + place.end:,} of {size:,}")
        data = mapped[start + place.begin : start + place.end]
        tensors[place.name] = SafeTensor(place.name, place.shape, place.format, data)
    return tensors


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    shape: tuple[int, ...]
    format: str
    begin: int
    end: int


def _place(name: str, entry: Mapping[str, Any]) -> _Place:
    begin, end = entry["data_offsets"]
    place = _Place(name, tuple(entry["shape"]), str(entry["dtype"]), begin, end)
    if not all(isinstance(value, int) and value >= 0 for value in (*place.shape, begin, end)):
        raise ValueError(f"tensor {name}: shape {list(place.shape)}, bytes {begin} to {end}")
    if place.format in _BYTES and end - begin != math.prod(place.shape) * _BYTES[place.format]:
        raise ValueError(f"tensor {name} of shape {list(place.shape)} {place.format} has {end - begin:,} bytes")
    return place
