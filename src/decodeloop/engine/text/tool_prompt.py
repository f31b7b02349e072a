"""Tools for a model whose template has no place for them: told in the system message, written as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from decodeloop.engine.text.tool_forms import ToolForm


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], form: ToolForm
) -> list[dict[str, Any]]:
    """The same chat for a template that knows only roles and contents.

    messages: plain ones (`chat.plain_message`). Calls become the assistant's text in `form`, results the user's.
    """
    chat: list[dict[str, Any]] = []
    for message in messages:
        if message["role"] == "tool":
            result = f"<tool_response>\n{message['content']}\n</tool_response>"
            if chat and chat[-1].get("results"):
                chat[-1]["content"] += "\n" + result
            else:
                chat.append({"role": "user", "content": result, "results": True})
        elif message.get("tool_calls"):
            said = [message["content"], form.write([_call(call) for call in message["tool_calls"]])]
            chat.append({"role": message["role"], "content": "\n".join(filter(None, said))})
        else:
            chat.append(dict(message))
    return _told(chat, _instructions(tools, form)) if tools else chat


def _told(chat: list[dict[str, Any]], instructions: str) -> list[dict[str, Any]]:
    if chat and chat[0]["role"] == "system":
        return [{**chat[0], "content": f"{chat[0]['content']}\n\n{instructions}"}, *chat[1:]]
    return [{"role": "system", "content": instructions}, *chat]


def _instructions(tools: Sequence[Mapping[str, Any]], form: ToolForm) -> str:
    functions = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.write([("NAME", '{"PARAMETER": VALUE}')])
    return (
        f"You can call these functions, described in JSON, one a line:\n{functions}\n\n"
        "When one of them helps to answer, call it: write nothing but the call, with the function's name and values "
        f"for its parameters, in exactly this form:\n{example}\n\n"
        "You will then be given its result. When none helps, answer in plain text."
    )


def _call(call: Mapping[str, Any]) -> tuple[str, str]:
    function = call["function"]
    return str(function["name"]), json.dumps(function.get("arguments", {}), ensure_ascii=False)
