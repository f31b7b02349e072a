"""How byte-level BPE cuts text into words before it merges, by the name that GGUF's `tokenizer.ggml.pre` gives.

Each entry is what the model's own tokenizer.json does. llama.cpp's names; several name one and the same rule.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True, slots=True)
class WordRule:
    """words: the regular expression of a word; None: GPT-2's. digits: each digit is a word of its own.

    nfc: text is normalised first. whole_words: a word that is a token is not built by merges. adds_bos: unless said.
    """

    words: str | None = None
    digits: bool = False
    nfc: bool = False
    whole_words: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None)
        if self.words is not None:
            return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(self.words), "isolated"), to_bytes])
        if self.digits:
            return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), to_bytes])
        return to_bytes


_LLAMA3 = WordRule(words=_LLAMA3_WORDS, whole_words=True, adds_bos=True)
_DIGITS = WordRule(digits=True)
WORD_RULES = {
    "default": WordRule(),
    "gpt-2": WordRule(),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "qwen2": WordRule(words=_QWEN2_WORDS, nfc=True),
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
}


def word_rule(name: str) -> WordRule:
    """Raises ValueError naming the choices."""
    if name not in WORD_RULES:
        raise ValueError(f"no pre-tokenizer {name!r}; known are {', '.join(sorted(WORD_RULES))}")
    return WORD_RULES[name]
