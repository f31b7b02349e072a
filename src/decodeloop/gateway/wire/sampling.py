"""A body's knobs to SamplingParams, Speculation and the rest of a Request."""

from __future__ import annotations

from decodeloop.gateway.wire.body import shown
from decodeloop.gateway.wire.constraints import grammar_of
from decodeloop.gateway.wire.fields import GenerationBody, SpeculationBody
from decodeloop.types import (
    CLASS_ALIASES,
    RequestClass,
    RequestRefused,
    SamplingParams,
    Speculation,
    SpeculationMode,
)
from decodeloop.types.routing import DEMANDS

__all__ = ["PRIORITIES", "class_of", "params_of", "priority_of", "speculation_of"]

PRIORITIES = ("interactive", "batch")


def params_of(body: GenerationBody, *, logprobs: int | None, default_max_tokens: int | None) -> SamplingParams:
    """Raises RequestRefused where two fields contradict each other or a bias names no token."""
    max_tokens = _max_tokens(body, default_max_tokens)
    if max_tokens is not None and body.min_tokens > max_tokens:
        raise RequestRefused(f"min_tokens ({body.min_tokens}) is above max_tokens ({max_tokens})", param="min_tokens")
    return SamplingParams(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(body.top_k, 0),
        min_p=body.min_p,
        repetition_penalty=body.repetition_penalty,
        presence_penalty=body.presence_penalty,
        frequency_penalty=body.frequency_penalty,
        logit_bias=tuple((_token_id(token), bias) for token, bias in body.logit_bias.items()),
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        banned_token_ids=tuple(body.bad_token_ids),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens,
        stop=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop),
        stop_token_ids=tuple(body.stop_token_ids),
        ignore_eos=body.ignore_eos,
        logprobs=logprobs,
        grammar=grammar_of(body),
    )


def speculation_of(asked: SpeculationBody) -> Speculation:
    try:
        mode = SpeculationMode.AUTO if asked.speculation is None else SpeculationMode(asked.speculation)
    except ValueError:
        raise _choose("decodeloop.speculation", asked.speculation, list(SpeculationMode)) from None
    if mode is SpeculationMode.OFF and (asked.draft_len or asked.drafter is not None):
        raise RequestRefused("speculation off takes no draft_len and no drafter", param="decodeloop.speculation")
    if mode is SpeculationMode.FORCE and asked.draft_len == 0:
        raise RequestRefused("speculation force needs a draft_len above 0", param="decodeloop.draft_len")
    if asked.lossless is not None and asked.lossless not in DEMANDS:
        raise _choose("decodeloop.lossless", asked.lossless, list(DEMANDS))
    return Speculation(mode, asked.draft_len, asked.drafter, lossless=asked.lossless or "")


def class_of(asked: SpeculationBody) -> RequestClass:
    name = asked.class_
    if name is None:
        return RequestClass.GENERAL_CHAT
    if name in CLASS_ALIASES:
        return CLASS_ALIASES[name]
    try:
        return RequestClass(name)
    except ValueError:
        raise _choose("decodeloop.class", name, [*RequestClass, *CLASS_ALIASES]) from None


def priority_of(asked: SpeculationBody) -> str:
    if asked.priority is None:
        return PRIORITIES[0]
    if asked.priority not in PRIORITIES:
        raise _choose("decodeloop.priority", asked.priority, list(PRIORITIES))
    return asked.priority


def _max_tokens(body: GenerationBody, default: int | None) -> int | None:
    given = {value for value in (body.max_tokens, body.max_completion_tokens) if value is not None}
    if len(given) > 1:
        raise RequestRefused("max_tokens and max_completion_tokens differ; set one", param="max_tokens")
    return given.pop() if given else default


def _token_id(text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 10:
        raise RequestRefused(f"logit_bias: {shown(text)} is not a token id", param="logit_bias")
    return int(text)


def _choose(param: str, got: str | None, choices: list[str]) -> RequestRefused:
    return RequestRefused(f"{param}: no {shown(got)}; choose from {', '.join(choices)}", param=param)
