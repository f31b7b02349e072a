"""Text around blocks, without the white space that belongs to the blocks."""

from __future__ import annotations

WHITE_SPACE = " \t\r\n"


class Prose:
    """White space next to a block is part of how the block is written; elsewhere it is text, passed on a bit later."""

    def __init__(self, *, after_block: bool = False) -> None:
        self._after_block = after_block
        self._space = ""  # may yet turn out to stand before a block

    def say(self, text: str) -> str:
        """What of `text`, and of white space before it, is text for sure."""
        if self._after_block:
            text = text.lstrip(WHITE_SPACE)
            if not text:
                return ""
            self._after_block = False
        said = text.rstrip(WHITE_SPACE)
        if not said:
            self._space += text
            return ""
        said, self._space = self._space + said, text[len(said) :]
        return said

    def block(self) -> None:
        """A block stands here."""
        self._space, self._after_block = "", True

    def finish(self) -> str:
        """White space at the end."""
        said, self._space = self._space, ""
        return said
