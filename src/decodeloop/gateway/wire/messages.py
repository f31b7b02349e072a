"""Chat messages and tools: checked, and brought to the plain form that chat templates read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from decodeloop.gateway.wire.body import shown
from decodeloop.gateway.wire.fields import ChatBody
from decodeloop.types import ChatPrompt, RequestRefused

__all__ = ["chat_prompt_of"]

_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TOOL_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_TOOL_CHOICES = ("none", "auto", "required")
_MAX_TOOLS = 128


def chat_prompt_of(body: ChatBody) -> ChatPrompt:
    """Text parts are joined by newlines, `developer` becomes `system`, absent contents become ""; the rest is kept.

    Raises:
        RequestRefused: 400 with the place (`messages[2].content`) as param.
    """
    if not body.messages:
        raise RequestRefused("'messages' must hold at least one message", param="messages")
    tools = tuple(_tool(tool, f"tools[{place}]") for place, tool in enumerate(body.tools))
    if len(tools) > _MAX_TOOLS:
        raise RequestRefused(f"'tools' holds {len(tools)} tools; at most {_MAX_TOOLS} are allowed", param="tools")
    return ChatPrompt(
        messages=tuple(_message(message, f"messages[{place}]") for place, message in enumerate(body.messages)),
        tools=tools,
        tool_choice=_tool_choice(body.tool_choice, tools),
        parallel_tool_calls=body.parallel_tool_calls,
        template_kwargs=body.chat_template_kwargs,
    )


def _message(message: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(message, dict):
        raise _refuse(at, "must be an object")
    role = message.get("role")
    if role not in _ROLES:
        raise _refuse(f"{at}.role", f"must be one of {', '.join(_ROLES)}, got {shown(role)}")
    plain = {name: value for name, value in message.items() if value is not None}
    plain["role"] = "system" if role == "developer" else role
    calls = plain.get("tool_calls")
    if calls is not None:
        if role != "assistant":
            raise _refuse(f"{at}.tool_calls", "belongs to assistant messages")
        _check_calls(calls, f"{at}.tool_calls")
    if "content" not in plain and role != "assistant":
        raise _refuse(f"{at}.content", "is missing")
    if role == "tool" and not isinstance(plain.get("tool_call_id"), str):
        raise _refuse(f"{at}.tool_call_id", "must be a string: the id of the call that this answers")
    plain["content"] = _text(plain.get("content", ""), f"{at}.content")
    return plain


def _text(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise _refuse(at, "must be a string or a list of text parts")
    return "\n".join(_part(part, f"{at}[{place}]") for place, part in enumerate(content))


def _part(part: Any, at: str) -> str:
    if not isinstance(part, dict):
        raise _refuse(at, "must be an object with a type")
    kind = part.get("type")
    if kind not in ("text", "refusal"):
        raise _refuse(f"{at}.type", f"must be text: this server reads text alone, got {shown(kind)}")
    text = part.get(kind)
    if not isinstance(text, str):
        raise _refuse(f"{at}.{kind}", "must be a string")
    return text


def _check_calls(calls: Any, at: str) -> None:
    if not isinstance(calls, list):
        raise _refuse(at, "must be a list")
    for place, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or call.get("type", "function") != "function":
            raise _refuse(f"{at}[{place}]", "must be an object of type function")
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise _refuse(f"{at}[{place}].function.{name}", "must be a string")


def _tool(tool: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        raise _refuse(at, "must be an object of type function")
    function = tool.get("function")
    if not isinstance(function, dict):
        raise _refuse(f"{at}.function", "must be an object")
    name = function.get("name")
    if not isinstance(name, str) or not _TOOL_NAME.fullmatch(name):
        raise _refuse(f"{at}.function.name", "must be 1 to 64 letters, digits, dots, dashes and underscores")
    if not isinstance(function.get("parameters") or {}, dict):
        raise _refuse(f"{at}.function.parameters", "must be a JSON schema object")
    if not isinstance(function.get("description") or "", str):
        raise _refuse(f"{at}.function.description", "must be a string")
    return tool


def _tool_choice(choice: str | dict[str, Any] | None, tools: tuple[Mapping[str, Any], ...]) -> str | Mapping[str, Any]:
    if choice is None:
        return "auto" if tools else "none"
    if isinstance(choice, str) and choice not in _TOOL_CHOICES:
        raise _refuse("tool_choice", f"must be one of {', '.join(_TOOL_CHOICES)} or a function, got {shown(choice)}")
    if isinstance(choice, str) and (tools or choice != "required"):
        return choice if tools else "none"
    if not tools:
        raise _refuse("tool_choice", "needs tools")
    function = choice.get("function") if isinstance(choice, dict) and choice.get("type") == "function" else None
    name = function.get("name") if isinstance(function, dict) else None
    names = [tool["function"]["name"] for tool in tools]
    if name not in names:
        raise _refuse("tool_choice", f"must name one of the functions in tools ({', '.join(names)}), got {shown(name)}")
    return {"type": "function", "function": {"name": name}}


def _refuse(param: str, what: str) -> RequestRefused:
    return RequestRefused(f"{param} {what}", param=param)
