"""A tokenizer from the vocabulary in a GGUF's metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers

from decodeloop.engine.text.tokenizer import BpeTokenizer
from decodeloop.engine.text.tokenizer_pre import word_rule
from decodeloop.engine.text.tokenizer_sentencepiece import sentencepiece_bpe

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def tokenizer_from_gguf(metadata: Mapping[str, Any], *, vocab_size: int) -> BpeTokenizer:
    """Build the tokenizer that `metadata` describes. vocab_size: rows of the embedding.

    Raises:
        ValueError: a kind of vocabulary or pre-tokenizer that is not known here, or one that is broken.
    """
    kind = metadata.get("tokenizer.ggml.model")
    builders = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    if kind not in builders:
        raise ValueError(f"no tokenizer model {kind!r}; known are {', '.join(sorted(builders))}")
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if not tokens or len(tokens) > vocab_size:
        raise ValueError(f"a vocabulary of {len(tokens)} tokens for an embedding of {vocab_size} rows")
    tokens = [_as_merged(token) for token in tokens] if kind == "llama" else tokens
    backend, adds_bos = builders[kind](metadata, tokens)
    _add_tokens(backend, tokens, metadata.get("tokenizer.ggml.token_type", []))
    ends = (metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS)
    return BpeTokenizer(
        backend,
        vocab_size=vocab_size,
        eos_ids=[end for end in ends if end is not None],
        bos_id=metadata.get("tokenizer.ggml.bos_token_id"),
        add_bos=metadata.get("tokenizer.ggml.add_bos_token", adds_bos),
    )


def _byte_level_bpe(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    rule = word_rule(metadata.get("tokenizer.ggml.pre", "default"))
    merges = [_pair(merge) for merge in metadata.get("tokenizer.ggml.merges", [])]
    backend = tokenizers.Tokenizer(_bpe(tokens, merges, ignore_merges=rule.whole_words))
    if rule.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = rule.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend, rule.adds_bos


def _sentencepiece_bpe(metadata: Mapping[str, Any], tokens: list[str]) -> tuple[tokenizers.Tokenizer, bool]:
    return sentencepiece_bpe(metadata, tokens), True


def _as_merged(token: str) -> str:
    """A piece as SentencePiece has it: GGUF writes user-defined runs of spaces with real spaces."""
    return token.replace(" ", "\u2581")


def _bpe(tokens: list[str], merges: list[tuple[str, str]], **options: Any) -> models.BPE:
    ids = {token: id_ for id_, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        twice = next(token for id_, token in enumerate(tokens) if ids[token] != id_)
        raise ValueError(f"token {twice!r} is in the vocabulary twice")
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in ids:
                raise ValueError(f"the merge {left!r} {right!r} needs {token!r}, which is not in the vocabulary")
    return models.BPE(vocab=ids, merges=merges, **options)


def _pair(merge: str) -> tuple[str, str]:
    cut = merge.find(" ", 1)
    if cut < 0:
        raise ValueError(f"{merge!r} is not a merge of two tokens")
    return merge[:cut], merge[cut + 1 :]


def _add_tokens(backend: tokenizers.Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Tokens that are found in the text before it is cut into words."""
    by_type = {
        kind: [AddedToken(token, special=kind == _CONTROL, normalized=False)
               for token, its_kind in zip(tokens, types, strict=False) if its_kind == kind]
        for kind in (_CONTROL, _USER_DEFINED)
    }  # fmt: skip
    backend.add_special_tokens(by_type[_CONTROL])
    backend.add_tokens(by_type[_USER_DEFINED])
