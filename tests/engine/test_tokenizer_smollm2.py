"""The default model's tokenizer against two others: one made of the published parts, one of the definition."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from decodeloop.engine.models.gguf_file import read_gguf
from decodeloop.engine.text.tokenizer import BpeTokenizer
from decodeloop.engine.text.tokenizer_gguf import tokenizer_from_gguf
from reference_bpe import byte_level_ids
from strings import tokenizer_strings

pytestmark = pytest.mark.model
MARKERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<empty_output>")
STRINGS = tokenizer_strings(MARKERS)


@pytest.fixture(scope="module")
def metadata(default_model_path: Path) -> Mapping[str, Any]:
    return read_gguf(default_model_path).metadata


@pytest.fixture(scope="module")
def ours(metadata: Mapping[str, Any]) -> BpeTokenizer:
    return tokenizer_from_gguf(metadata, vocab_size=49152)


def test_ids_are_those_of_transformers_with_the_published_parts(
    metadata: Mapping[str, Any], ours: BpeTokenizer
) -> None:
    """transformers' own conversion of this GGUF does not cut digits apart and so differs on one string in six."""
    tokens = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    backend = Tokenizer(models.BPE({token: id_ for id_, token in enumerate(tokens)}, merges))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in tokens[:17]])
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend)
    for text in STRINGS:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False), repr(text)
        plain = theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(text) == plain, repr(text)
    for id_ in range(0, len(tokens), 7):
        assert ours.token_text(id_) == backend.decode([id_], skip_special_tokens=False)


def test_ids_follow_the_definition_of_byte_pair_encoding(metadata: Mapping[str, Any], ours: BpeTokenizer) -> None:
    ids = {token: id_ for id_, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    for text in STRINGS:
        assert ours.encode(text) == byte_level_ids(text, ids, ranks), repr(text)


def test_markers_digits_and_ends(ours: BpeTokenizer) -> None:
    assert ours.encode("<|im_start|>user\n", special=True) == [1, 4093, 198]
    assert ours.encode("12") == [*ours.encode("1"), *ours.encode("2")]
    assert ours.eos_ids == {0, 2}
    assert (ours.bos_id, ours.add_bos, ours.vocab_size) == (1, False, 49152)
