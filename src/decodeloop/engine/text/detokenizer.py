"""Token ids to text, one at a time, never half a character."""

from __future__ import annotations

import codecs

from decodeloop.engine.text import Tokenizer


class Detokenizer:
    """The text of a growing token sequence. It follows committed tokens only, so it never goes back.

    The pieces from `push` and the last one from `finish` concatenate to the tokenizer's decode of all the ids.
    """

    def __init__(self, tokenizer: Tokenizer, *, shown: frozenset[int] = frozenset()) -> None:
        """shown: control tokens that do appear in the text, because a parser looks for them."""
        self._tokenizer = tokenizer
        self._shown = shown
        self._utf8 = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def pending(self) -> bool:
        """Whether the tokens so far end inside a character."""
        return bool(self._utf8.getstate()[0])

    def push(self, token: int) -> str:
        """The characters that `token` completes; a byte sequence that can't be UTF-8 becomes U+FFFD."""
        if token in self._shown:
            return self._utf8.decode(self._tokenizer.token_text(token).encode())
        if self._tokenizer.is_special(token):
            return ""
        return self._utf8.decode(self._tokenizer.token_bytes(token))

    def finish(self) -> str:
        """What is left of a character that never became complete: U+FFFD, or nothing."""
        return self._utf8.decode(b"", final=True)
