"""What a model wrote as a call of a tool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(slots=True)
class WrittenCall:
    """A call as far as it has been read. arguments: JSON text of an object, growing until `whole`."""

    name: str | None = None
    arguments: str = ""
    whole: bool = False


class CallReader(Protocol):
    """Reads the body of a block of calls, a character at a time."""

    calls: list[WrittenCall]

    @property
    def complete(self) -> bool:
        """Whether the body may end here: at least one call, every call whole."""
        ...

    def push(self, char: str) -> bool:
        """False when the text isn't a call of a tool that was offered, after which nothing more may be pushed."""
        ...


class Tools:
    """The tools a request offers, by name."""

    def __init__(self, tools: Sequence[Mapping[str, Any]]) -> None:
        """tools: as OpenAI sends them, functions."""
        self.functions = {str(tool["function"]["name"]): tool["function"] for tool in tools}

    def __contains__(self, name: str) -> bool:
        return name in self.functions

    def may_become(self, text: str) -> bool:
        """Whether some tool's name begins with `text`."""
        return any(name.startswith(text) for name in self.functions)

    def parameters(self, name: str) -> Mapping[str, Any]:
        """The schema of a tool's arguments."""
        return {"type": "object", **(self.functions[name].get("parameters") or {})}

    def parameter_names(self, name: str) -> list[str]:
        """In the order in which the schema lists them."""
        return list(self.parameters(name).get("properties") or {})
