"""Chat messages to the text that a model was trained on, through its Jinja template."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.reasoning import OPEN as THINK_OPEN
from decodeloop.engine.text.reasoning import Thinking, thinking_after
from decodeloop.engine.text.tool_forms import tool_form_for
from decodeloop.engine.text.tool_prompt import with_tools_as_text
from decodeloop.types import ChatPrompt, RequestRefused

_RESERVED = frozenset(("messages", "tools"))


class ChatTemplate:
    """A model's chat template, rendered as transformers renders it. Thread-safe.

    form: how the model writes calls of tools. reasons: whether it may reason before it answers.
    """

    def __init__(
        self,
        source: str | None,
        tokenizer: Tokenizer,
        *,
        family: str = "",
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        """source: Jinja, or None for a model that has no template; `render` then refuses. now: local time."""
        self.form = tool_form_for(source, family)
        self.reasons = THINK_OPEN in (source or "")
        self._fault = "this model has no chat template; use /v1/completions with the whole text as `prompt`"
        self._template: jinja2.Template | None = None
        self._takes_tools = False
        self._words = _special_words(tokenizer)
        if source is None:
            return
        environment = _environment(now)
        try:
            self._takes_tools = "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            self._fault = f"this model's chat template is not valid ({error}); use /v1/completions"

    def render(self, prompt: ChatPrompt) -> str:
        """The prompt's text, ready for the assistant's turn; markers in it are control tokens.

        Raises:
            RequestRefused: no template, messages that the template refuses, or parts that aren't text.
        """
        if self._template is None:
            raise RequestRefused(self._fault, param="messages")
        if taken := _RESERVED & prompt.template_kwargs.keys():
            raise RequestRefused(
                f"chat_template_kwargs may not set {', '.join(sorted(taken))}", param="chat_template_kwargs"
            )
        tools = [dict(tool) for tool in prompt.tools] if prompt.tool_choice != "none" else []
        variables = {**self._words, "add_generation_prompt": True, **prompt.template_kwargs}
        messages = [plain_message(message, f"messages[{i}]") for i, message in enumerate(prompt.messages)]
        if not self._takes_tools:
            messages, tools = with_tools_as_text(messages, tools, self.form), []
        try:
            return self._template.render(messages=messages, tools=tools or None, **variables)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise RequestRefused(
                f"this model's chat template refuses the messages: {error}", param="messages"
            ) from None
        except RecursionError:
            raise RequestRefused("the messages are nested too deeply", param="messages") from None

    def thinking(self, prompt: ChatPrompt) -> Thinking:
        """How the rendered prompt leaves reasoning, which a template decides by its arguments, not by the messages."""
        if not self.reasons:
            return Thinking.CLOSED
        bare = ChatPrompt(({"role": "user", "content": "?"},), template_kwargs=prompt.template_kwargs)
        try:
            return thinking_after(self.render(bare))
        except RequestRefused:  # a template that wants more than a question; its real prompt is judged elsewhere
            return Thinking.FREE


def plain_message(message: Mapping[str, Any], at: str) -> dict[str, Any]:
    """A message as templates expect it: no nulls, its text one string, arguments of tool calls as objects."""
    plain = {key: value for key, value in message.items() if value is not None}
    if not isinstance(plain.get("role"), str):
        raise RequestRefused(f"{at} has no role", param=at)
    plain["content"] = _text(plain.get("content", ""), f"{at}.content")
    if reasoning := plain.get("reasoning_content") or plain.get("reasoning"):
        plain["reasoning_content"] = reasoning
    if "tool_calls" in plain:
        plain["tool_calls"] = [_plain_call(call, f"{at}.tool_calls[{i}]") for i, call in enumerate(plain["tool_calls"])]
    return plain


def _text(content: Any, at: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise RequestRefused(f"{at} must be a string or a list of text parts", param=at)
    parts = []
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise RequestRefused(
                f"{at}[{i}] is a part of type {kind!r}; this model reads only parts of type 'text'", param=f"{at}[{i}]"
            )
        parts.append(part["text"])
    return "\n".join(parts)


def _plain_call(call: Any, at: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestRefused(f"{at} must have a function with a name", param=at)
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError as error:
            raise RequestRefused(f"{at}.function.arguments is not valid JSON: {error}", param=at) from None
    return {**call, "function": {**function, "arguments": arguments}}


def _special_words(tokenizer: Tokenizer) -> dict[str, str]:
    """What templates call bos_token and eos_token; of several end tokens the last is the end of a turn."""
    words = {"eos_token": tokenizer.token_text(max(tokenizer.eos_ids))} if tokenizer.eos_ids else {}
    if tokenizer.bos_id is not None:
        words["bos_token"] = tokenizer.token_text(tokenizer.bos_id)
    return words


def _environment(now: Callable[[], datetime]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlocks, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes HTML; models were trained without. The parameters are what templates pass."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


class _GenerationBlocks(jinja2.ext.Extension):
    """`{% generation %}` marks what a model is trained on; for a prompt its body is all there is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
