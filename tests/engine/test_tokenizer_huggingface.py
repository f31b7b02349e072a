"""Tokenizers from a Hugging Face directory: the same ids as transformers, whatever the files beside say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, processors
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from decodeloop.engine.text.tokenizer_huggingface import tokenizer_from_directory
from strings import tokenizer_strings
from test_tokenizer_gguf import MARKERS, published

STRINGS = tokenizer_strings(MARKERS, seed=5)
MakeDirectory = Callable[..., Path]


@pytest.fixture
def directory(tmp_path: Path) -> MakeDirectory:
    def make(tokenizer: Tokenizer, **config: Any) -> Path:
        tokenizer.save(str(tmp_path / "tokenizer.json"))
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
        return tmp_path

    return make


@pytest.mark.parametrize("pre", ["smollm", "qwen2", "llama-bpe"])
def test_ids_are_those_of_transformers(pre: str, directory: MakeDirectory) -> None:
    tokenizer = published(pre)
    tokenizer.enable_truncation(4)  # some tokenizer.json carry what their authors encoded with
    tokenizer.enable_padding(length=64)
    path = directory(tokenizer, eos_token=MARKERS[2])
    ours = tokenizer_from_directory(path, vocab_size=tokenizer.get_vocab_size(), eos_ids=(), bos_id=None)
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(path / "tokenizer.json"))
    for text in STRINGS:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False), repr(text)
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == plain, repr(text)


def test_bytes_are_what_transformers_decodes(directory: MakeDirectory) -> None:
    tokenizer = published("qwen2")
    path = directory(tokenizer, eos_token=MARKERS[2])
    ours = tokenizer_from_directory(path, vocab_size=tokenizer.get_vocab_size(), eos_ids=(), bos_id=None)
    for id_ in range(tokenizer.get_vocab_size()):
        assert ours.token_text(id_) == tokenizer.decode([id_], skip_special_tokens=False)


def test_ends_come_from_every_file(directory: MakeDirectory) -> None:
    path = directory(published("smollm"), eos_token={"content": MARKERS[1]})
    ours = tokenizer_from_directory(path, vocab_size=800, eos_ids=(40, 41), bos_id=None)
    assert ours.eos_ids == {0, 1, 2, 40, 41}


def starting_with(tokenizer: Tokenizer, marker: str) -> Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{marker} $A", special_tokens=[(marker, tokenizer.token_to_id(marker))]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("processed", "config", "bos", "expected"),
    [
        (False, {"bos_token": MARKERS[1]}, None, (1, False)),
        (True, {"bos_token": MARKERS[1]}, None, (1, True)),
        (True, {"bos_token": {"content": MARKERS[1]}, "add_bos_token": False}, None, (1, False)),
        (False, {"bos_token": MARKERS[1], "add_bos_token": True}, None, (1, True)),
        (True, {}, 1, (1, True)),
        (False, {"bos_token": None}, 1, (None, False)),  # Qwen: config.json has one, the tokenizer none
    ],
)
def test_whether_bos_starts_a_text(
    directory: MakeDirectory, processed: bool, config: dict[str, Any], bos: int | None, expected: tuple[Any, bool]
) -> None:
    tokenizer = published("smollm")
    path = directory(starting_with(tokenizer, MARKERS[1]) if processed else tokenizer, **config)
    ours = tokenizer_from_directory(path, vocab_size=800, eos_ids=(), bos_id=bos)
    assert (ours.bos_id, ours.add_bos) == expected
    assert ours.encode("a") == tokenizer.encode("a", add_special_tokens=False).ids


def test_added_tokens_without_an_embedding_are_plain_text(directory: MakeDirectory) -> None:
    """Gemma 3 1B's tokenizer knows an image token beyond the model's vocabulary."""
    tokenizer = published("smollm")
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["<image>"])
    assert tokenizer.token_to_id("<image>") == size
    ours = tokenizer_from_directory(directory(tokenizer), vocab_size=size, eos_ids=(2,), bos_id=None)
    assert max(ours.encode("<image><|im_end|>", special=True)) < size
    assert ours.encode("<|im_end|>", special=True) == [2]
    with pytest.raises(ValueError, match="the tokenizer has 700 tokens, the model 600"):
        tokenizer_from_directory(directory(published("smollm")), vocab_size=600, eos_ids=(2,), bos_id=None)


def test_what_cannot_be_used_is_refused_in_words(tmp_path: Path, directory: MakeDirectory) -> None:
    def load() -> None:
        tokenizer_from_directory(tmp_path, vocab_size=800, eos_ids=(), bos_id=None)

    with pytest.raises(ValueError, match=r"no tokenizer\.json$"):
        load()
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ValueError, match=r"tokenizer\.model: save it"):
        load()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json: "):
        load()
    directory(Tokenizer(WordLevel({"a": 0}, unk_token="a")))
    with pytest.raises(ValueError, match="neither byte-level BPE nor SentencePiece"):
        load()
    directory(Tokenizer(models.Unigram([("a", 0.0)])))
    (tmp_path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not a JSON object"):
        load()
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not JSON"):
        load()
