"""The two APIs' bodies to what the gateway runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import getrandbits

from msgspec import Struct

from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.body import read_body
from decodeloop.gateway.wire.fields import ChatBody, CompletionBody, GenerationBody, SpeculationBody
from decodeloop.gateway.wire.messages import chat_prompt_of
from decodeloop.gateway.wire.prompts import prompts_of
from decodeloop.gateway.wire.sampling import class_of, params_of, priority_of, speculation_of
from decodeloop.types import (
    Identity,
    Prompt,
    Request,
    RequestClass,
    RequestRefused,
    SamplingParams,
    Slo,
    Speculation,
    SpeculationMode,
)
from decodeloop.types.routing import Regime

__all__ = ["Arrival", "Call", "Classify", "parse_chat", "parse_completion", "unclassified"]

Classify = Callable[[Prompt], RequestClass]

COMPLETION_MAX_TOKENS = 16  # OpenAI's default for completions; chat has none
SEED_BITS = 53  # every seed is exact as a JSON number


def unclassified(prompt: Prompt) -> RequestClass:
    return RequestClass.GENERAL_CHAT


class Arrival(Struct, frozen=True):
    """What is known of a request beside its body. classify: its class, where it declares none."""

    id: str
    default_model: str
    identity: Identity = Identity()
    slo: Slo = Slo()
    arrived_s: float = 0.0
    classify: Classify = unclassified


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request: what the engine runs (a request a prompt), and how its answer is wanted."""

    id: str
    requests: tuple[Request, ...]
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    token_ids: bool = False
    parallel_tool_calls: bool = True

    @property
    def model(self) -> str:
        return self.requests[0].model

    @property
    def choices(self) -> int:
        return sum(request.n for request in self.requests)

    @property
    def logprobs(self) -> bool:
        return self.requests[0].params.logprobs is not None

    def ruled(self, speculation: Speculation) -> Call:
        """With what it may have of speculation."""
        if self.requests[0].speculation == speculation:
            return self
        return replace(self, requests=tuple(replace(request, speculation=speculation) for request in self.requests))

    def in_regime(self, regime: Regime) -> Call:
        """As an engine is asked that serves in `regime`, and has a switch per request."""
        if regime is not Regime.PLAIN:
            return self
        plain = Speculation(mode=SpeculationMode.OFF)
        return replace(self, requests=tuple(replace(request, speculation=plain) for request in self.requests))


def parse_completion(raw: bytes, arrival: Arrival, limits: Limits) -> Call:
    """Raises RequestRefused for what the body gets wrong."""
    body = read_body(raw, CompletionBody, max_depth=limits.max_json_depth)
    prompts = prompts_of(body.prompt)
    if body.best_of not in (None, body.n):
        raise RequestRefused("best_of must equal n: choices are not ranked here", param="best_of")
    params = params_of(body, logprobs=body.logprobs, default_max_tokens=COMPLETION_MAX_TOKENS)
    _check_common(body, special_tokens=True)
    return _call(body, arrival, prompts, params, limits)


def parse_chat(raw: bytes, arrival: Arrival, limits: Limits) -> Call:
    """Raises RequestRefused for what the body gets wrong."""
    body = read_body(raw, ChatBody, max_depth=limits.max_json_depth)
    if body.top_logprobs and not body.logprobs:
        raise RequestRefused("top_logprobs needs logprobs to be true", param="top_logprobs")
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    params = params_of(body, logprobs=logprobs, default_max_tokens=None)
    _check_common(body, special_tokens=False)
    return _call(body, arrival, [chat_prompt_of(body)], params, limits, parallel_tool_calls=body.parallel_tool_calls)


def _check_common(body: GenerationBody, *, special_tokens: bool) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestRefused("stream_options needs stream to be true", param="stream_options")
    if body.add_special_tokens not in (None, special_tokens):
        raise RequestRefused(
            f"add_special_tokens must be {str(special_tokens).lower()} here", param="add_special_tokens"
        )
    if body.priority != 0:
        raise RequestRefused(
            "numbered priorities are not supported; use decodeloop.priority: interactive or batch", param="priority"
        )


def _call(
    body: GenerationBody,
    arrival: Arrival,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    limits: Limits,
    *,
    parallel_tool_calls: bool = True,
) -> Call:
    if len(prompts) * body.n > limits.max_choices:
        raise RequestRefused(
            f"{len(prompts)} prompts times n = {body.n} is more than the {limits.max_choices} choices allowed",
            param="n" if body.n > 1 else "prompt",
        )
    make = _request_maker(body, arrival, params)
    single = len(prompts) == 1
    ids = [arrival.id] if single else [f"{arrival.id}-{place}" for place in range(len(prompts))]
    options = body.stream_options
    include_usage = options is not None and bool(options.include_usage)
    return Call(
        id=arrival.id,
        requests=tuple(make(id, prompt) for id, prompt in zip(ids, prompts, strict=True)),
        stream=body.stream,
        include_usage=include_usage,
        continuous_usage=include_usage and options is not None and bool(options.continuous_usage_stats),
        token_ids=body.return_token_ids,
        parallel_tool_calls=parallel_tool_calls,
    )


def _request_maker(body: GenerationBody, arrival: Arrival, params: SamplingParams) -> Callable[[str, Prompt], Request]:
    asked = body.decodeloop or SpeculationBody()
    seed = getrandbits(SEED_BITS) if body.seed == -1 else body.seed
    speculation, request_class, priority = speculation_of(asked), class_of(asked), priority_of(asked)

    def make(id: str, prompt: Prompt) -> Request:
        return Request(
            id=id,
            model=body.model or arrival.default_model,
            prompt=prompt,
            params=params,
            seed=seed,
            n=body.n,
            speculation=speculation,
            identity=arrival.identity,
            request_class=arrival.classify(prompt) if asked.class_ is None else request_class,
            slo=arrival.slo,
            priority=priority,
            deadline_ms=asked.deadline_ms,
            arrived_s=arrival.arrived_s,
        )

    return make
