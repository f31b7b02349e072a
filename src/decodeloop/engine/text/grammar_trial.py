"""A program: compiles an llguidance grammar under limits of processor time and memory, writes its error.

llguidance bounds most of its work, but not all: two dozen intersected patterns ran for more than 40 s, and a thread
can't be stopped. So what might be expensive is compiled in a process first, which can.
"""

from __future__ import annotations

import json
import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_S = 3
MEMORY_BYTES = 2 << 30


class Vocabulary:
    """The control tokens that a grammar may name, and every byte as a token: enough to find out what it costs."""

    bos_token_id = None

    def __init__(self, size: int, special: dict[int, str]) -> None:
        free = iter(token for token in range(size + 256) if token not in special)
        letters = {next(free): bytes([byte]) for byte in range(256)}
        words = {token: text.encode() for token, text in special.items()}
        self.tokens = [letters.get(token) or words.get(token) or b"" for token in range(max(size, *letters) + 1)]
        self.special_token_ids = list(special)
        self.eos_token_id = min(special)

    def __call__(self, text: str | bytes) -> list[int]:
        return [self.tokens.index(bytes([byte])) for byte in (text.encode() if isinstance(text, str) else text)]


def main() -> int:
    """stdin: JSON of grammar, vocab_size and special, a list of [id, text]."""
    _limit()
    asked = json.load(sys.stdin)
    vocabulary = Vocabulary(asked["vocab_size"], dict(asked["special"]))
    tokenizer = LLTokenizer(TokenizerWrapper(vocabulary), n_vocab=len(vocabulary.tokens))
    matcher = LLMatcher(tokenizer, asked["grammar"], log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        matcher.compute_bitmask()
    sys.stdout.write(matcher.get_error())
    return 0


def _limit() -> None:
    try:
        import resource
    except ImportError:  # not a Unix: the parent's timeout is all there is
        return
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))


if __name__ == "__main__":
    sys.exit(main())
