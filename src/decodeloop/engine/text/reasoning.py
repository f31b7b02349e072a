"""Reasoning that a model writes before its answer."""

from __future__ import annotations

from enum import Enum, auto

from decodeloop.engine.text.markers import MarkerScanner
from decodeloop.engine.text.parsed import Parsed
from decodeloop.engine.text.prose import WHITE_SPACE, Prose

OPEN, CLOSE = "<think>", "</think>"


class Thinking(Enum):
    """What the prompt already says about reasoning."""

    FREE = auto()  # nothing: the model may open it
    OPENED = auto()  # the template opened it
    CLOSED = auto()  # the template closed it: the answer follows


def thinking_after(prompt: str) -> Thinking:
    """How a rendered prompt, whose messages hold no markers themselves, leaves reasoning."""
    if prompt.rfind(OPEN) > prompt.rfind(CLOSE):
        return Thinking.OPENED
    return Thinking.CLOSED if prompt.rstrip(WHITE_SPACE).endswith(CLOSE) else Thinking.FREE


class _Place(Enum):
    START = auto()
    REASONING = auto()
    CONTENT = auto()


class ReasoningParser:
    """Separates reasoning at the start of an answer from what follows. An `AnswerParser`.

    Reasoning that never ends is reasoning to the last character. White space around the markers is dropped.
    """

    def __init__(self, thinking: Thinking) -> None:
        self._place = {
            Thinking.FREE: _Place.START,
            Thinking.OPENED: _Place.REASONING,
            Thinking.CLOSED: _Place.CONTENT,
        }[thinking]
        self._space: list[str] = []  # white space at the start
        self._begun = ""  # of the opening marker
        self._scanner = MarkerScanner((CLOSE,))
        self._reasoning = Prose(after_block=True)
        self._after_reasoning = False

    def push(self, text: str) -> Parsed:
        if self._place is _Place.START:
            text = self._at_start(text)
        reasoning = ""
        if self._place is _Place.REASONING:
            scan = self._scanner.push(text)
            reasoning, text = self._reasoning.say(scan.text), scan.rest
            if scan.hit is not None:
                self._place, self._after_reasoning = _Place.CONTENT, True
        if self._after_reasoning:
            text = text.lstrip(WHITE_SPACE)
            self._after_reasoning = not text
        return Parsed(text, reasoning)

    def finish(self) -> Parsed:
        if self._place is _Place.REASONING:
            return Parsed("", self._reasoning.say(self._scanner.finish()) + self._reasoning.finish())
        return Parsed(self._give_start())

    def _at_start(self, text: str) -> str:
        """What follows once it is clear whether the answer begins with reasoning; nothing before."""
        begun = self._begun + (text if self._begun else text.lstrip(WHITE_SPACE))
        self._space.append("" if self._begun else text[: len(text) - len(begun)])
        self._begun = begun
        if begun.startswith(OPEN):
            self._place, self._space, self._begun = _Place.REASONING, [], ""
            return begun[len(OPEN) :]
        if OPEN.startswith(begun):
            return ""
        self._place = _Place.CONTENT
        return self._give_start()

    def _give_start(self) -> str:
        start = "".join(self._space) + self._begun
        self._space, self._begun = [], ""
        return start
