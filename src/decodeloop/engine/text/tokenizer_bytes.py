"""The bytes each token stands for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from tokenizers import Tokenizer

_SPACE = "\u2581"  # SentencePiece writes a space so
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _printable_bytes() -> dict[str, int]:
    """GPT-2's alphabet: printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, ... in order."""
    themselves = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in themselves]
    return {chr(byte): byte for byte in themselves} | {chr(256 + i): byte for i, byte in enumerate(others)}


BYTE_OF_CHARACTER: Mapping[str, int] = _printable_bytes()


def byte_table(tokenizer: Tokenizer, vocab_size: int) -> tuple[bytes, ...]:
    """[vocab_size]: the bytes of each id; b"" where the vocabulary has none (a padded embedding).

    Control tokens stand for their marker's text.

    Raises:
        ValueError: the vocabulary is neither byte-level nor SentencePiece's, so its bytes are not known exactly.
    """
    table = [b""] * vocab_size
    of_token = _byte_level if is_byte_level(tokenizer) else _sentence_piece
    if of_token is _sentence_piece and not _falls_back_to_bytes(tokenizer):
        raise ValueError("the tokenizer is neither byte-level BPE nor SentencePiece with byte fallback")
    for token, id_ in tokenizer.get_vocab(with_added_tokens=False).items():
        if id_ < vocab_size:
            table[id_] = of_token(token)
    for id_, added in tokenizer.get_added_tokens_decoder().items():
        if id_ < vocab_size:
            escaped = of_token is _sentence_piece and not added.special  # runs of spaces
            table[id_] = _sentence_piece(added.content) if escaped else added.content.encode()
    return tuple(table)


def is_byte_level(tokenizer: Tokenizer) -> bool:
    return any(part["type"] == "ByteLevel" for part in _decoder_parts(tokenizer))


def _falls_back_to_bytes(tokenizer: Tokenizer) -> bool:
    return any(part["type"] == "ByteFallback" for part in _decoder_parts(tokenizer))


def _decoder_parts(tokenizer: Tokenizer) -> list[dict[str, str]]:
    if tokenizer.decoder is None:
        return []
    state = json.loads(tokenizer.decoder.__getstate__())
    parts: list[dict[str, str]] = state.get("decoders", [state])
    return parts


def _byte_level(token: str) -> bytes:
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in token])
    except KeyError:  # a token that was put in by hand, as text
        return token.encode()


def _sentence_piece(token: str) -> bytes:
    if byte := _BYTE_TOKEN.fullmatch(token):
        return bytes([int(byte[1], 16)])
    return token.replace(_SPACE, " ").encode()
