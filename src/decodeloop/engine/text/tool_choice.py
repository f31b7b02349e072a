"""What a tool choice imposes on the text."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
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
    answer = f"answer: {_literal(form.begin)} call {_more(form, most)} {_literal(form.end)}"
    return "\n".join([answer, *_call_rules(form, tools, names, form.before)])


def strict_rules(form: ToolForm, tools: Tools) -> str | None:
    """Lark rules whose `answer` is free but for its calls, which are whole and fit the tools that ask for it.

    None when no tool is strict, or the form has no marker that only calls begin with.
    """
    strict = {name for name, function in tools.functions.items() if function.get("strict")}
    marker = form.trigger
    if not strict or marker is None:
        return None
    rules = [
        "answer: called* rest",
        f"called: head {_literal(form.begin.removeprefix(marker))} call {_literal(form.end)}",
        f"head[lazy]: /(.|\\n)*{re.escape(marker)}/",
        "rest: /(.|\\n)*/",
    ]
    if form.begin:
        rules[1] = rules[1].replace(" call ", f" call {_more(form, MAX_CALLS)} ")
    names = tuple(tools.functions)
    return "\n".join([*rules, *_call_rules(form, tools, names, form.before.removeprefix(marker), strict)])


def _call_rules(
    form: ToolForm, tools: Tools, names: tuple[str, ...], before: str, strict: Collection[str] | None = None
) -> list[str]:
    """Rules of `call`. strict: the tools whose schema counts; None: all."""
    rules = ["call: " + " | ".join(f"call_{i}" for i in range(len(names)))]
    for i, name in enumerate(names):
        head, tail = form.call_pieces(name)
        schema = tools.parameters(name) if strict is None or name in strict else {"type": "object"}
        rules.append(f"call_{i}: {_literal(before + head.removeprefix(form.before))} arguments_{i} {_literal(tail)}")
        rules.append(f"arguments_{i}: {json_rule(schema)}")
    return rules


def _more(form: ToolForm, most: int) -> str:
    return f"({_literal(form.between)} call){{0,{most - 1}}}" if most > 1 else ""


def _literal(text: str) -> str:
    return json.dumps(text) if text else ""
