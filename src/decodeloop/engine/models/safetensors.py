"""A Hugging Face directory as a Checkpoint: config.json, safetensors, tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelError
from decodeloop.engine.models.config_huggingface import config_from_huggingface
from decodeloop.engine.models.names import check_tensors, huggingface_name, possible_tensors
from decodeloop.engine.models.safetensors_file import SafeTensor, read_safetensors
from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.tokenizer_huggingface import read_json, tokenizer_from_directory

_EMBEDDING = "embed_tokens.weight"


@dataclass(frozen=True, slots=True)
class SafeWeight:
    """added: what the family adds to the stored values (Gemma keeps a norm's distance from 1)."""

    tensor: SafeTensor
    added: float = 0.0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.tensor.shape

    @property
    def format(self) -> str:
        return self.tensor.format

    def float32(self) -> npt.NDArray[np.float32]:
        values = self.tensor.float32()
        if self.added:
            values += np.float32(self.added)
        return values

    def blocks(self) -> None:
        return None


class HuggingFaceCheckpoint:
    """A model in a directory. Raises ModelError naming the directory and what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = _name(path)
        raw = self._json("config.json")
        if not raw:
            raise ModelError(f"{path}: no config.json")
        try:
            self.config = config_from_huggingface(raw)
        except ModelError as error:
            raise ModelError(f"{path}: {error}") from error
        self._raw = raw
        self._files = weight_files(path)
        self._stored = self._ours()
        check_tensors(str(path), self.config, self._stored)

    @cached_property
    def chat_template(self) -> str | None:
        for file in ("chat_template.jinja", "additional_chat_templates/default.jinja"):
            if (self.path / file).is_file():
                return (self.path / file).read_text(encoding="utf-8")
        template = self._json("chat_template.json").get("chat_template")
        template = template or self._json("tokenizer_config.json").get("chat_template")
        if isinstance(template, list):  # several, each with a name
            named = {entry["name"]: entry["template"] for entry in template}
            template = named.get("default")
        return template

    @cached_property
    def tokenizer(self) -> Tokenizer:
        text = self._raw.get("text_config") or {}
        generation = self._json("generation_config.json")
        ends = [source.get("eos_token_id") for source in (self._raw, text, generation)]
        bos = next((source["bos_token_id"] for source in (text, self._raw) if source.get("bos_token_id")), None)
        try:
            return tokenizer_from_directory(
                self.path,
                vocab_size=self.config.vocab_size,
                eos_ids={id_ for end in ends if end is not None for id_ in (end if isinstance(end, list) else [end])},
                bos_id=bos,
            )
        except ValueError as error:
            raise ModelError(f"{self.path}: {error}") from error

    @cached_property
    def sha256(self) -> str:
        """Of the one file, or of the digests of all in the order of their names."""
        digests = []
        for path in self._files:
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
        return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()

    def names(self) -> Iterator[str]:
        return iter(self._stored)

    def weight(self, name: str) -> SafeWeight:
        if name == "head" and self.config.tied_embeddings:
            name = "embed"
        if name not in self._stored:
            raise KeyError(f"{self.path}: no tensor {name!r}")
        shifted = self.config.family == "gemma3" and name.endswith("norm")
        return SafeWeight(self._stored[name], added=1.0 if shifted else 0.0)

    def _ours(self) -> dict[str, SafeTensor]:
        stored = {name: tensor for path in self._files for name, tensor in read_safetensors(path).items()}
        prefix = _text_prefix(self.path, stored)
        config = self.config
        names = possible_tensors(config)
        ours = {name: stored.get(prefix + huggingface_name(name, config)) for name in names if name != "head"}
        if not config.tied_embeddings:
            ours["head"] = next((tensor for name, tensor in stored.items() if name.endswith("lm_head.weight")), None)
        return {name: tensor for name, tensor in ours.items() if tensor is not None}

    def _json(self, name: str) -> dict[str, Any]:
        try:
            return read_json(self.path / name)
        except ValueError as error:
            raise ModelError(f"{self.path}: {error}") from error


def weight_files(directory: Path) -> list[Path]:
    """The safetensors that hold the model, sorted by name.

    Raises:
        ModelError: there are none, or one that the index names is missing.
    """
    index = read_json(directory / "model.safetensors.index.json").get("weight_map", {})
    files = sorted({directory / name for name in index.values()}) or sorted(directory.glob("*.safetensors"))
    if not files:
        others = sorted(path.name for path in directory.glob("*") if path.suffix in (".bin", ".gguf", ".pt", ".pth"))
        found = f" (only {', '.join(others)})" if others else ""
        raise ModelError(f"{directory}: no *.safetensors{found}")
    if missing := [path.name for path in files if not path.is_file()]:
        raise ModelError(f"{directory}: the index names {', '.join(missing)}, which is not there")
    return files


def _text_prefix(path: Path, stored: dict[str, SafeTensor]) -> str:
    """What stands before the text model's names: "model.", or longer in a multimodal one."""
    prefixes = [name.removesuffix(_EMBEDDING) for name in stored if name.endswith(_EMBEDDING)]
    if len(prefixes) != 1:
        raise ModelError(f"{path}: {len(prefixes)} tensors are called ...{_EMBEDDING}; there must be one")
    return prefixes[0]


def _name(path: Path) -> str:
    """The hub's name for a directory in its cache (models--org--name/snapshots/revision), else the directory's."""
    for part in reversed(path.absolute().parts):
        if part.startswith("models--"):
            return "/".join(part.split("--")[1:])
    return path.absolute().name
