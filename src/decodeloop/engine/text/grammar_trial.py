"""A program: compiles the llguidance grammar on stdin under limits of processor time and memory, writes its error.

llguidance bounds most of its work, but not all: two dozen intersected patterns ran for more than 40 s, and a thread
can't be stopped. So what might be expensive is compiled in a process first, which can.
"""

from __future__ import annotations

import sys

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

CPU_S = 3
MEMORY_BYTES = 2 << 30


class Bytes:
    """Every byte a token: enough to find out what a grammar costs."""

    eos_token_id = 256
    bos_token_id = None
    tokens = (*(bytes([byte]) for byte in range(256)), b"\xff<eos>")
    special_token_ids = (256,)

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text.encode() if isinstance(text, str) else text)


def main() -> int:
    _limit()
    tokenizer = LLTokenizer(TokenizerWrapper(Bytes()), n_vocab=257, eos_token=256)
    matcher = LLMatcher(tokenizer, sys.stdin.read(), log_level=0, limits=LLParserLimits(verbose_errors=False))
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
