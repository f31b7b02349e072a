"""A GGUF file as a Checkpoint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelConfig, ModelError
from decodeloop.engine.models.config_gguf import config_from_gguf
from decodeloop.engine.models.gguf_file import GgufFile, GgufTensor, read_gguf
from decodeloop.engine.models.names import check_tensors, gguf_name, possible_tensors
from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.tokenizer_gguf import tokenizer_from_gguf

_PLAIN = {"F32", "F16", "BF16", "F64"}


@dataclass(frozen=True, slots=True)
class GgufWeight:
    """A tensor of a GGUF. heads: its rows pair up dimensions within each of so many heads and are put in halves."""

    tensor: GgufTensor
    heads: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def format(self) -> str:
        return self.tensor.format

    def float32(self) -> npt.NDArray[np.float32]:
        """The values, a new array of `shape`. Raises ModelError where gguf cannot dequantise the format."""
        quantization = gguf.GGMLQuantizationType[self.format]
        try:
            values = gguf.quants.dequantize(self._rows(), quantization)
        except NotImplementedError as error:
            raise ModelError(f"tensor {self.tensor.name}: cannot dequantise {self.format}") from error
        return np.array(values, dtype=np.float32).reshape(self.shape)

    def blocks(self) -> npt.NDArray[np.uint8] | None:
        return None if self.format in _PLAIN else self._rows()

    def _rows(self) -> npt.NDArray[np.uint8]:
        if self.heads is None:
            return self.tensor.data
        if len(self.shape) == 1:  # a bias: an element is a row
            width = self.tensor.data.shape[1] // self.shape[0]
            return self.tensor.data.reshape(-1, width)[halves_from_pairs(self.shape[0], self.heads)].reshape(1, -1)
        return self.tensor.data[halves_from_pairs(self.shape[0], self.heads)]


def halves_from_pairs(rows: int, heads: int) -> npt.NDArray[np.intp]:
    """[rows]: where to find each rotate-half row among rows whose heads interleave (0, d/2, 1, d/2 + 1, ...).

    Llama's GGUFs are stored so, because their original rotary embedding turns neighbouring dimensions.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


class GgufCheckpoint:
    """A model in one GGUF file. Raises ModelError naming the file and what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = read_gguf(path)
        metadata = self._file.metadata
        self.name = str(metadata.get("general.name") or path.stem)
        try:
            self.config = _config(self._file)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        self._stored = self._ours()
        check_tensors(str(path), self.config, self._stored)

    @property
    def chat_template(self) -> str | None:
        template: str | None = self._file.metadata.get("tokenizer.chat_template")
        return template

    @cached_property
    def tokenizer(self) -> Tokenizer:
        try:
            return tokenizer_from_gguf(self._file.metadata, vocab_size=self.config.vocab_size)
        except ValueError as error:
            raise ModelError(f"{self.path}: {error}") from error

    @cached_property
    def sha256(self) -> str:
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def names(self) -> Iterator[str]:
        return iter(self._stored)

    def weight(self, name: str) -> GgufWeight:
        if name == "head" and self.config.tied_embeddings:
            name = "embed"
        if name not in self._stored:
            raise KeyError(f"{self.path}: no tensor {name!r}")
        return GgufWeight(self._stored[name], self._interleaved_heads(name))

    def _ours(self) -> dict[str, GgufTensor]:
        theirs = {name: gguf_name(name) for name in possible_tensors(self.config)}
        return {name: self._file.tensors[stored] for name, stored in theirs.items() if stored in self._file.tensors}

    def _interleaved_heads(self, name: str) -> int | None:
        if self.config.family != "llama":
            return None
        part = name.rpartition(".")[2]
        return {
            "q": self.config.heads,
            "q_bias": self.config.heads,
            "k": self.config.kv_heads,
            "k_bias": self.config.kv_heads,
        }.get(part)


def _config(file: GgufFile) -> ModelConfig:
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError("no tensor token_embd.weight")
    rope_factors = file.tensors.get("rope_freqs.weight")
    if rope_factors is not None and rope_factors.format != "F32":
        raise ModelError(f"rope_freqs.weight is {rope_factors.format}, not F32")
    return config_from_gguf(
        file.metadata,
        vocab_size=embedding.shape[0],
        tied_embeddings="output.weight" not in file.tensors,
        attention_bias="blk.0.attn_q.bias" in file.tensors,
        rope_factors=None if rope_factors is None else rope_factors.data.view(np.float32).reshape(-1),
    )
