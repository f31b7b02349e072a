"""SentencePiece BPE from the vocabulary in a GGUF: pieces and scores become merges.

SentencePiece joins the adjacent pair whose union is the best piece; the `tokenizers` library joins by a list of pairs.
So every cut of every piece into two pieces is a merge, the better pieces' first (Kudo and Richardson 2018, section 3.1;
the order among the cuts of one piece is that of Gemma's own tokenizer.json: the shorter left part first).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

_SPACE = "\u2581"
_NORMAL, _USER_DEFINED = 1, 4  # tokenizer.ggml.token_type
_BYTE_TOKENS = 256


def sentencepiece_bpe(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tokenizers.Tokenizer:
    """Build the backend of a vocabulary whose `tokenizer.ggml.model` is "llama".

    Raises:
        ValueError: scores or types are missing, or byte tokens are, so that some text could not be encoded.
    """
    scores = metadata.get("tokenizer.ggml.scores", [])
    types = metadata.get("tokenizer.ggml.token_type", [])
    if len(scores) != len(tokens) or len(types) != len(tokens):
        raise ValueError(f"{len(tokens)} tokens with {len(scores)} scores and {len(types)} types")
    ids = {token: id_ for id_, token in enumerate(tokens)}
    if sum(f"<0x{byte:02X}>" in ids for byte in range(_BYTE_TOKENS)) < _BYTE_TOKENS:
        raise ValueError("a SentencePiece vocabulary without all of the byte tokens <0x00> to <0xFF>")
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    backend = tokenizers.Tokenizer(
        models.BPE(
            vocab=ids,
            merges=merges_of(tokens, scores, types),
            unk_token=None if unknown is None else tokens[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    escape = normalizers.Replace(" ", _SPACE)
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), escape]) if prefixed else escape
    backend.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return backend


def merges_of(tokens: Sequence[str], scores: Sequence[float], types: Sequence[int]) -> list[tuple[str, str]]:
    """Every cut of a piece into two pieces, best piece first. Control and byte tokens are no pieces of text."""
    pieces = [id_ for id_, kind in enumerate(types) if kind in (_NORMAL, _USER_DEFINED)]
    words = {tokens[id_] for id_ in pieces}
    return [
        (token[:cut], token[cut:])
        for token in map(tokens.__getitem__, _best_first(pieces, scores, types))
        for cut in range(1, len(token))
        if token[:cut] in words and token[cut:] in words
    ]


def _best_first(pieces: list[int], scores: Sequence[float], types: Sequence[int]) -> list[int]:
    """Ids are in order of merit already, but for vocabularies that were put together from several.

    Scores alone do not tell: those of user-defined pieces are arbitrary.
    """
    normal = [scores[id_] for id_ in pieces if types[id_] == _NORMAL]
    if all(better >= worse for better, worse in pairwise(normal)):
        return pieces
    return sorted(pieces, key=lambda id_: (types[id_] == _NORMAL, -scores[id_]))
