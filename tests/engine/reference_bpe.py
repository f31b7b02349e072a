"""Byte-pair encoding as it is defined, in as few words as possible: what the tokenizers are compared with."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence

import regex

GPT2_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def byte_letters() -> dict[int, str]:
    """GPT-2's letter for each byte (Radford et al. 2019, encoder.py): printable ones stand for themselves."""
    letters, others = {}, 0
    for byte in range(256):
        if byte in range(33, 127) or byte in range(161, 173) or byte in range(174, 256):
            letters[byte] = chr(byte)
        else:
            letters[byte] = chr(256 + others)
            others += 1
    return letters


LETTERS = byte_letters()


def byte_level_ids(
    text: str, ids: Mapping[str, int], ranks: Mapping[tuple[str, str], int], *, digits: bool = True
) -> list[int]:
    """SmolLM2's rule: each numeric character apart, GPT-2's words in between; letters without a token are dropped."""
    out = []
    for stretch in _apart_from_numerals(text) if digits else [text]:
        for word in regex.findall(GPT2_WORDS, stretch):
            letters = [LETTERS[byte] for byte in word.encode()]
            out += [ids[token] for token in _merge([x for x in letters if x in ids], lambda a, b: ranks.get((a, b)))]
    return out


def sentencepiece_ids(
    text: str, ids: Mapping[str, int], scores: Mapping[str, float], whole: Sequence[str] = ()
) -> list[int]:
    """SentencePiece's rule: the adjacent pair whose union scores best is joined, leftmost first; bytes for the rest.

    whole: pieces that are found first, the longest at each place, and never joined with what is beside them.
    """
    text = text.replace(" ", "\u2581")
    out: list[int] = []
    cut = "|".join(regex.escape(piece) for piece in sorted(whole, key=len, reverse=True))
    for stretch in regex.split(f"({cut})", text) if cut else [text]:
        if stretch in whole:
            out.append(ids[stretch])
            continue
        pieces = _merge(list(stretch), lambda a, b: None if a + b not in scores else -scores[a + b])
        for piece in pieces:
            out += [ids[piece]] if piece in ids else [ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
    return out


def _apart_from_numerals(text: str) -> list[str]:
    stretches = [""]
    for character in text:
        if unicodedata.category(character).startswith("N"):
            stretches += [character, ""]
        else:
            stretches[-1] += character
    return [stretch for stretch in stretches if stretch]


def _merge(symbols: list[str], rank) -> list[str]:
    while True:
        ranked = [(found, at) for at in range(len(symbols) - 1) if (found := rank(*symbols[at : at + 2])) is not None]
        if not ranked:
            return symbols
        at = min(ranked)[1]
        symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
