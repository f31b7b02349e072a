"""A thousand strings that tokenizers get wrong: scripts, code, control characters, whitespace, markers."""

from __future__ import annotations

import random
import string
from collections.abc import Sequence

_WORDS = [
    "the",
    "quick",
    "brown",
    "fox",
    "can't",
    "won't",
    "I'll",
    "you've",
    "THEY'RE",
    "it's",
    "naïve",
    "façade",
    "Straße",
    "İstanbul",
    "ﬁnance",
    "ǅ",
    "příliš",
    "žluťoučký",
    "kůň",
    "úpěl",
    "ďábelské",
    "ódy",
    "Čeština",
    "řeřicha",
    "日本語",
    "漢字かな交じり文",
    "中文分词",
    "한국어",
    "조선말",
    "ภาษาไทย",
    "हिन्दी",
    "العربية",
    "עברית",
    "Ελληνικά",
    "русский",
    "def",
    "foo(self):",
    "return",
    "x[i+1]",
    "!=",
    "0b1011",
    ">=",
    "3.14e-10",
    "#!/bin/sh",
    "<html></html>",
    '{"a":[1,null]}',
    "\\frac{1}{2}",
    "camelCaseName",
    "snake_case_name",
    "CONSTANT_99",
    "0123456789",
    "1234567",
    "12",
    "٣٤٥",
    "½",
    "Ⅷ",
    "²",
    "\uff11\uff12",
    "www.x-y.cz/?q=%20#a",
]
_EMOJI = ("🎉", "👩‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇨🇿", "☃️", "\U0001d539\U0001d560", "🫠")
_SPACES = (
    " ",
    "  ",
    "   ",
    "     ",
    "\n",
    "\n\n",
    "\n\n\n",
    "\t",
    "\t\t",
    "\r\n",
    " \n ",
    "\u00a0",
    "\u3000",
    "\u2028",
)
_CONTROL = (
    "\x00",
    "\x01",
    "\x07",
    "\x1b[0m",
    "\x7f",
    "\u200b",
    "\u200d",
    "\ufeff",
    "\ufffd",
    "\u202e",
    "\u0301",
    "e\u0301",
)
_LARGEST = 0x10FFFF


def tokenizer_strings(markers: Sequence[str], *, count: int = 1000, seed: int = 7) -> list[str]:
    """`count` strings, the empty one first, each marker alone and the rest mixed at random."""
    chance = random.Random(seed)
    strings = ["", *markers, *_WORDS, *_EMOJI, *_SPACES, *_CONTROL]
    while len(strings) < count:
        pieces = [_piece(chance, markers) for _ in range(chance.randint(1, 14))]
        strings.append("".join(pieces))
    return strings[:count]


def _piece(chance: random.Random, markers: Sequence[str]) -> str:
    kinds = {
        "word": 45,
        "space": 15,
        "emoji": 10,
        "control": 8,
        "marker": 8,
        "punctuation": 7,
        "any": 7,
    }
    match chance.choices(list(kinds), list(kinds.values()))[0]:
        case "word":
            piece = chance.choice(("", " ", " ", " ")) + chance.choice(_WORDS)
        case "space":
            piece = chance.choice(_SPACES) * chance.choice((1, 1, 1, 2, 7))
        case "emoji":
            piece = chance.choice(_EMOJI)
        case "control":
            piece = chance.choice(_CONTROL)
        case "marker":
            piece = chance.choice(markers)[: chance.choice((None, None, -1, 3))]
        case "punctuation":
            piece = "".join(chance.choices(string.punctuation, k=chance.randint(1, 6)))
        case _:
            piece = "".join(_any_character(chance) for _ in range(chance.randint(1, 5)))
    return piece


def _any_character(chance: random.Random) -> str:
    while True:
        point = chance.randint(0, _LARGEST if chance.random() < 0.3 else 0xFFFF)
        if not 0xD800 <= point < 0xE000:  # surrogates are no characters
            return chr(point)
