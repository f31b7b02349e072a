"""What routing needs of a body that another engine will read: the rest is passed on unread."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.body import checked, dumped, read_object
from decodeloop.gateway.wire.fields import Count, SpeculationBody
from decodeloop.gateway.wire.sampling import class_of, priority_of, speculation_of
from decodeloop.types import ChatPrompt, Prompt, RequestClass, RequestRefused, Speculation

__all__ = ["Envelope", "read_envelope"]

AFFINE_CHARACTERS = 1024  # of a prompt's beginning: about what a prefix cache keeps together


class Envelope(Struct, frozen=True, kw_only=True):
    """body: decoded. asked: the fields that ask for something. prefix(): a digest of the prompt's beginning."""

    body: Mapping[str, Any]
    model: str
    stream: bool
    include_usage: bool
    choices: int
    max_tokens: int | None
    request_class: RequestClass
    class_declared: bool
    speculation: Speculation
    priority: str
    temperature: float
    asked: frozenset[str]

    def prefix(self) -> bytes:
        """Of a chat: its first messages, so that the turns of one conversation share it."""
        told = self.body.get("messages") or self.body.get("prompt") or ""
        if isinstance(told, list):
            told = told[:2]
        text = told if isinstance(told, str) else dumped(told).decode()
        return blake2b(text[:AFFINE_CHARACTERS].encode("utf-8", "surrogatepass"), digest_size=8).digest()


def read_envelope(
    raw: bytes, default_model: str, limits: Limits, classify: Callable[[Prompt], RequestClass] | None = None
) -> Envelope:
    """Raises RequestRefused for a body that is no object, or whose routing fields make no sense."""
    body = read_object(raw, max_depth=limits.max_json_depth)
    fields: _Fields = checked({name: body[name] for name in _NAMES if name in body}, _Fields)
    own = fields.decodeloop or _SILENT
    choices = fields.n * _prompts(body.get("prompt"))
    if choices > limits.max_choices:
        raise RequestRefused(f"{choices} choices are more than the {limits.max_choices} allowed", param="n")
    caps = [cap for cap in (fields.max_tokens, fields.max_completion_tokens) if cap is not None]
    return Envelope(
        body=body,
        model=fields.model or default_model,
        stream=fields.stream,
        include_usage=bool(fields.stream_options.get("include_usage")),
        choices=choices,
        max_tokens=min(caps, default=None),
        request_class=class_of(own) if classify is None or own.class_ is not None else classify(_prompt(body)),
        class_declared=own.class_ is not None,
        speculation=_AUTO if own is _SILENT else speculation_of(own),
        priority=priority_of(own),
        temperature=fields.temperature,
        asked=frozenset([name for name, value in body.items() if value]),
    )


class _Fields(Struct):
    model: str = ""
    stream: bool = False
    stream_options: dict[str, Any] = msgspec.field(default_factory=dict)
    n: Count = 1
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    temperature: float = 1.0
    decodeloop: SpeculationBody | None = None


_SILENT = SpeculationBody()
_AUTO = speculation_of(_SILENT)
_NAMES = _Fields.__struct_encode_fields__


def _prompts(prompt: Any) -> int:
    several = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    return len(prompt) if several else 1


def _prompt(body: Mapping[str, Any]) -> Prompt:
    """As far as it makes sense: another engine reads it, and refuses what doesn't."""
    messages, tools = body.get("messages"), body.get("tools")
    if isinstance(messages, list):
        offered = tuple(tool for tool in tools if isinstance(tool, dict)) if isinstance(tools, list) else ()
        choice = body.get("tool_choice")
        told = tuple([message for message in messages if isinstance(message, dict)])
        return ChatPrompt(told, offered, choice if isinstance(choice, str | dict) else "auto")
    prompt = body.get("prompt")
    if isinstance(prompt, list) and prompt:
        prompt = prompt[0]
    return prompt if isinstance(prompt, str) else ()
