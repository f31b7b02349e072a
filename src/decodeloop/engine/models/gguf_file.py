"""A GGUF file's header: metadata and where each tensor lies. The tensors stay on disk, memory-mapped.

Source: the GGUF version 3 specification. Read here rather than by `gguf.GGUFReader`, which makes an array of each
string and so needs 3 s for a 49k vocabulary and 15 s for a 262k one; this takes a tenth of a second.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LARGEST_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """shape: numpy order, [out, in] for a matrix. data: uint8 [rows, bytes a row], a view of the file."""

    name: str
    shape: tuple[int, ...]
    format: str
    data: npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class GgufFile:
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]


def read_gguf(path: Path) -> GgufFile:
    """Parse the header and map the tensors.

    Raises:
        ModelError: not a GGUF, a version or tensor type unknown here, one part of several, or cut short.
    """
    if path.stat().st_size == 0:
        raise ModelError(f"{path}: an empty file, not a GGUF")
    mapped: npt.NDArray[np.uint8] = np.memmap(path, np.uint8, mode="r")
    cursor = _Cursor(mapped.data)
    try:
        if bytes(mapped[:4]) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file (it starts with {bytes(mapped[:4])!r})")
        cursor.at = 4
        version, tensor_count, key_count = cursor.take("<IQQ")
        if version not in (2, 3):
            raise ModelError(f"{path}: GGUF version {version}; versions 2 and 3 can be read (little-endian)")
        metadata = {cursor.string(): cursor.value(cursor.take("<I")[0]) for _ in range(key_count)}
        places = [_tensor_place(cursor) for _ in range(tensor_count)]
    except (struct.error, UnicodeDecodeError, KeyError) as error:
        raise ModelError(f"{path}: broken or cut short: the header ends at byte {cursor.at} ({error})") from error
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise ModelError(f"{path}: one part of {parts}; merge them first (llama-gguf-split --merge)")
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ModelError(f"{path}: general.alignment is {alignment!r}")
    start = -(-cursor.at // alignment) * alignment
    try:
        return GgufFile(metadata, {place.name: _map_tensor(place, mapped[start:]) for place in places})
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from error


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    shape: tuple[int, ...]
    kind: int
    offset: int


def _tensor_place(cursor: _Cursor) -> _Place:
    name = cursor.string()
    dimensions = cursor.take("<I")[0]
    if dimensions > _LARGEST_DIMENSIONS:
        raise KeyError(f"tensor {name!r} has {dimensions} dimensions")
    shape = tuple(reversed(cursor.take(f"<{dimensions}Q")))
    kind, offset = cursor.take("<IQ")
    return _Place(name, shape, kind, offset)


def _map_tensor(place: _Place, data: npt.NDArray[np.uint8]) -> GgufTensor:
    try:
        quantization = gguf.GGMLQuantizationType(place.kind)
    except ValueError as error:
        raise ModelError(f"tensor {place.name} has the unknown type {place.kind}") from error
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    if not place.shape or place.shape[-1] % block:
        raise ModelError(f"tensor {place.name} of shape {list(place.shape)} cannot be in blocks of {block} values")
    rows, row_bytes = math.prod(place.shape[:-1]), place.shape[-1] // block * block_bytes
    end = place.offset + rows * row_bytes
    if end > len(data):
        raise ModelError(f"cut short: tensor {place.name} needs {end - len(data):,} more bytes than the file has")
    return GgufTensor(place.name, place.shape, quantization.name, data[place.offset : end].reshape(rows, row_bytes))


class _Cursor:
    """Reads the header's values one after the other."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self._buffer, self.at)
        self.at += struct.calcsize(layout)
        return values

    def string(self) -> str:
        (length,) = self.take("<Q")
        if length > len(self._buffer) - self.at:
            raise struct.error(f"a string of {length} bytes")
        text = str(self._buffer[self.at : self.at + length], "utf-8")
        self.at += length
        return text

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.take("<" + _SCALARS[kind])[0]
        item, count = self.take("<IQ")
        if count > len(self._buffer) - self.at:
            raise struct.error(f"an array of {count} items")
        if item in _SCALARS:
            return list(self.take(f"<{count}{_SCALARS[item]}"))
        return [self.value(item) for _ in range(count)]
