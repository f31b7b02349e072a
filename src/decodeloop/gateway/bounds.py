"""How much a request may use at most, told from its text: nothing is tokenised before it is admitted."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from decodeloop.governance.settings import GovernanceSettings
from decodeloop.types import ChatPrompt, Prompt, Request, Usage

__all__ = ["bound_of", "likely_prompt_tokens", "prompt_bytes"]

MESSAGE_TOKENS = 8  # that a chat template puts around a message
LIKELY_BYTES_PER_TOKEN = 4


def bound_of(requests: Sequence[Request], settings: GovernanceSettings) -> Usage:
    """The most that the requests use; of answers without max_tokens, the first `answer_tokens`."""
    prompt = sum(_prompt_bound(request.prompt, settings) for request in requests)
    completion = sum(
        request.n * (settings.answer_tokens if request.params.max_tokens is None else request.params.max_tokens)
        for request in requests
    )
    return Usage(prompt=prompt, completion=completion)


def likely_prompt_tokens(prompt: Prompt) -> int:
    """A guess, for a request that ended before its engine said how many there were."""
    if isinstance(prompt, tuple):
        return len(prompt)
    return -(-prompt_bytes(prompt) // LIKELY_BYTES_PER_TOKEN)


def prompt_bytes(prompt: str | ChatPrompt) -> int:
    """Of its text in UTF-8, tools included."""
    if isinstance(prompt, str):
        return len(prompt.encode("utf-8", "surrogatepass"))
    tools = len(orjson.dumps(prompt.tools)) if prompt.tools else 0
    return sum(_message_bytes(message) for message in prompt.messages) + tools


def _prompt_bound(prompt: Prompt, settings: GovernanceSettings) -> int:
    if isinstance(prompt, tuple):
        return len(prompt)
    around = settings.template_tokens
    if isinstance(prompt, ChatPrompt):
        around += MESSAGE_TOKENS * len(prompt.messages)
    return -int(-prompt_bytes(prompt) // settings.prompt_bytes_per_token) + around


def _message_bytes(message: object) -> int:
    content = message.get("content") if isinstance(message, dict) and len(message) == 2 else message
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    return len(orjson.dumps(content))
