"""What a request asks of governance, told from its text: nothing is tokenised before it is admitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from decodeloop.gateway.wire.body import dumped
from decodeloop.gateway.wire.envelope import Envelope
from decodeloop.gateway.wire.parse import Arrival, Call
from decodeloop.governance.capability import Ask
from decodeloop.types import ChatPrompt, Identity, Prompt, RequestClass, Speculation

__all__ = ["Claim", "claim_of_call", "claim_of_envelope"]

MESSAGE_TOKENS = 8  # that a chat template puts around a message


class Claim(Struct, frozen=True, kw_only=True):
    """One HTTP request. prompt_bytes: of its prompts as text; prompt_tokens: those that came as ids, or that templates
    may add to messages. answer_tokens: the most of all choices together; None: it names none. prompts: its content."""

    id: str
    identity: Identity
    model: str
    request_class: RequestClass
    speculation: Speculation
    tier: str
    prompt_bytes: int
    prompt_tokens: int
    templates: int  # prompts that are chats
    choices: int
    answer_tokens: int | None
    prompts: Sequence[Any]

    def ask(self, pool: str | None, asked: str = "", smaller: str = "") -> Ask:
        """asked: the alias that its model answers for."""
        return Ask(
            model=asked or self.model, smaller=smaller, speculation=self.speculation, pool=pool, slo_tier=self.tier
        )


def claim_of_call(call: Call) -> Claim:
    first = call.requests[0]
    texts = [prompt for prompt in (request.prompt for request in call.requests) if not isinstance(prompt, tuple)]
    most = first.params.max_tokens
    return Claim(
        id=call.id,
        identity=first.identity,
        model=call.model,
        request_class=first.request_class,
        speculation=first.speculation,
        tier=first.priority,
        prompt_bytes=sum(_bytes(prompt) for prompt in texts),
        prompt_tokens=sum(_tokens(request.prompt) for request in call.requests),
        templates=sum(isinstance(prompt, ChatPrompt) for prompt in texts),
        choices=call.choices,
        answer_tokens=None if most is None else most * call.choices,
        prompts=[
            prompt.messages if isinstance(prompt, ChatPrompt) else prompt
            for prompt in (request.prompt for request in call.requests)
        ],
    )


def claim_of_envelope(envelope: Envelope, arrival: Arrival) -> Claim:
    body = envelope.body
    messages, prompt = body.get("messages"), body.get("prompt")
    said = [each for each in (messages, prompt, body.get("tools"), body.get("functions")) if each]
    most = envelope.max_tokens
    return Claim(
        id=arrival.id,
        identity=arrival.identity,
        model=envelope.model,
        request_class=envelope.request_class,
        speculation=envelope.speculation,
        tier=envelope.priority,
        prompt_bytes=sum(len(dumped(each)) for each in said),
        prompt_tokens=MESSAGE_TOKENS * len(messages) if isinstance(messages, list) else 0,
        templates=0 if messages is None else 1,
        choices=envelope.choices,
        answer_tokens=None if most is None else most * envelope.choices,
        prompts=[prompt if messages is None else messages],
    )


def _bytes(prompt: str | ChatPrompt) -> int:
    """Of its text in UTF-8, tools included."""
    if isinstance(prompt, str):
        return len(prompt.encode("utf-8", "surrogatepass"))
    tools = len(dumped(prompt.tools)) if prompt.tools else 0
    return sum(_message_bytes(message) for message in prompt.messages) + tools


def _message_bytes(message: Mapping[str, Any]) -> int:
    content = message.get("content")
    if isinstance(content, str) and len(message) == 2:
        return len(content.encode("utf-8", "surrogatepass"))
    return len(dumped(message))


def _tokens(prompt: Prompt) -> int:
    if isinstance(prompt, tuple):
        return len(prompt)
    return MESSAGE_TOKENS * len(prompt.messages) if isinstance(prompt, ChatPrompt) else 0
