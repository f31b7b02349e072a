"""What parsers make of an answer's text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from decodeloop.types import ToolCallDelta


@dataclass(frozen=True, slots=True)
class Parsed:
    """What more is known of the answer. Concatenated over all pieces it doesn't depend on how the text was cut."""

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()

    def then(self, more: Parsed) -> Parsed:
        calls = {delta.index: delta for delta in self.tool_calls}
        for delta in more.tool_calls:
            begun = calls.get(delta.index)
            calls[delta.index] = delta if begun is None else replace(begun, arguments=begun.arguments + delta.arguments)
        return Parsed(self.content + more.content, self.reasoning + more.reasoning, tuple(calls.values()))


class AnswerParser(Protocol):
    def push(self, text: str) -> Parsed:
        """Read more of the answer."""
        ...

    def finish(self) -> Parsed:
        """The answer ends here: everything still held back."""
        ...
