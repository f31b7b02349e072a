"""A tokenizer from a Hugging Face directory: tokenizer.json and what stands beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tokenizers

from decodeloop.engine.text.tokenizer import BpeTokenizer


def tokenizer_from_directory(
    directory: Path, *, vocab_size: int, eos_ids: Iterable[int], bos_id: int | None
) -> BpeTokenizer:
    """Read `directory`. eos_ids, bos_id: what config.json and generation_config.json say, for what it leaves out.

    Raises:
        ValueError: no tokenizer.json, or one that cannot be used exactly.
    """
    path = directory / "tokenizer.json"
    if not path.is_file():
        hint = " (it has tokenizer.model: save it with transformers' AutoTokenizer to get one)"
        raise ValueError(f"no tokenizer.json{hint if (directory / 'tokenizer.model').is_file() else ''}")
    backend = _within(_load(path.read_text(encoding="utf-8")), vocab_size)
    config = read_json(directory / "tokenizer_config.json")
    eos = _id_of(backend, config.get("eos_token"))
    bos = _id_of(backend, config["bos_token"]) if "bos_token" in config else bos_id
    starts = backend.encode("").ids[:1] == [bos]
    return BpeTokenizer(
        backend,
        vocab_size=vocab_size,
        eos_ids={*eos_ids, *([] if eos is None else [eos])},
        bos_id=bos,
        add_bos=bool(config.get("add_bos_token", starts)),
    )


def read_json(path: Path) -> dict[str, Any]:
    """The object in `path`; {} where there is no such file. Raises ValueError where it is not one."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def _load(text: str) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises nothing narrower
        raise ValueError(f"tokenizer.json: {error}") from error


def _within(backend: tokenizers.Tokenizer, vocab_size: int) -> tokenizers.Tokenizer:
    """Without the added tokens that the model has no embedding for (Gemma 3 1B knows an image token it cannot read)."""
    if all(id_ < vocab_size for id_ in backend.get_added_tokens_decoder()):
        return backend
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < vocab_size]
    return _load(json.dumps(state))


def _id_of(backend: tokenizers.Tokenizer, token: str | Mapping[str, Any] | None) -> int | None:
    if token is None:
        return None
    text = token if isinstance(token, str) else token["content"]
    id_: int | None = backend.token_to_id(text)
    return id_
