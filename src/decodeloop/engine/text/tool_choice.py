"""What a tool choice imposes on the text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from decodeloop.engine.text.calls import Tools
from decodeloop.engine.text.grammar_source import json_rule
from decodeloop.engine.text.tool_forms import ToolForm
from decodeloop.types import RequestRefused

MAX_CALLS = 16  # in one answer that must call


def must_call(tools: Tools, choice: str | Mapping[str, Any]) -> tuple[str, ...]:
    """The names of which one must be called; none under "auto" and "none".

    Raises:
        RequestRefused: no such choice, or no such tool.
    """
    if choice in ("auto", "none"):
        return ()
    if choice == "required":
        if not tools.functions:
            raise RequestRefused("tool_choice 'required' needs tools", param="tool_choice")
        return tuple(tools.functions)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name is None:
        raise RequestRefused(
            "tool_choice must be 'none', 'auto', 'required' or {'type': 'function', 'function': {'name': ...}}",
            param="tool_choice",
        )
    if name not in tools:
        known = ", ".join(tools.functions) or "no tools"
        raise RequestRefused(f"tool_choice names {name!r}, but the request offers {known}", param="tool_choice")
    return (str(name),)


def calls_rules(form: ToolForm, tools: Tools, names: tuple[str, ...], *, most: int = MAX_CALLS) -> str:
    """Lark rules whose `answer` is one to `most` calls of `names`, written as `form` writes them."""
    lines = [f"answer: {_literal(form.begin)} call {_more(form, most)} {_literal(form.end)}"]
    lines.append("call: " + " | ".join(f"call_{i}" for i in range(len(names))))
    for i, name in enumerate(names):
        head, tail = form.call_pieces(name)
        lines.append(f"call_{i}: {_literal(head)} arguments_{i} {_literal(tail)}")
        lines.append(f"arguments_{i}: {json_rule(tools.parameters(name))}")
    return "\n".join(lines)


def _more(form: ToolForm, most: int) -> str:
    return f"({_literal(form.between)} call){{0,{most - 1}}}" if most > 1 else ""


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""
