"""Between text and tokens: tokenizer, chat template, detokeniser, grammar, parsers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

__all__ = ["Tokenizer"]


class Tokenizer(Protocol):
    """Text to target token ids and back. Thread-safe."""

    vocab_size: int  # the target's logits; may exceed what the tokenizer knows
    eos_ids: frozenset[int]  # every id that ends a turn (eos, end-of-turn)
    bos_id: int | None
    add_bos: bool  # whether the model wants BOS before raw text

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`, no BOS added. special: markers such as <|im_end|> become their single id; else plain text.

        Raises ValueError for half a surrogate pair, which is no text.
        """
        ...

    def token_bytes(self, token: int) -> bytes:
        """The bytes that a token adds to the text; concatenating them over any ids gives the text's bytes.

        A control token: its marker's. An id that the tokenizer doesn't know (vocab_size may be padded): none.
        """
        ...

    def token_text(self, token: int) -> str:
        """A token as it is shown in logprobs."""
        ...

    def is_special(self, token: int) -> bool:
        """Control tokens and ids that the tokenizer doesn't know: they add nothing to an answer's text."""
        ...

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str: ...
