"""How a model's answers are read: which parsers its template calls for, and what a tool choice imposes."""

from __future__ import annotations

from collections.abc import Callable

from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.output import Output
from decodeloop.types import GrammarSpec, Request


class Parsing:
    """The reading side of one model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, chat_template: str | None, family: str) -> None:
        self._tokenizer, self._chat_template, self._family = tokenizer, chat_template, family

    def grammar(self, request: Request) -> GrammarSpec | None:
        """What the request's tool choice imposes on the text; None when it imposes nothing."""
        del request
        return None

    def opener(self, request: Request) -> Callable[[int], Output]:
        """Makes the `Output` of a choice, given its index."""
        return lambda choice: Output(self._tokenizer, request.params)
