"""The fields of both APIs' bodies, with their types and ranges (OpenAI's, and vLLM's additions)."""

from __future__ import annotations

from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

__all__ = [
    "ChatBody",
    "CompletionBody",
    "Count",
    "GenerationBody",
    "JsonSchema",
    "ResponseFormat",
    "SpeculationBody",
    "StreamOptions",
    "StructuredOutputs",
]

T = TypeVar("T")

_MOST = 2**31 - 1  # an int32, where an engine has them

Count = Annotated[int, Meta(ge=1, le=_MOST)]
TokenId = Annotated[int, Meta(ge=0, le=_MOST)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]
Bias = Annotated[float, Meta(ge=-100, le=100)]
StopText = Annotated[str, Meta(min_length=1, max_length=1024)]
TopCount = Annotated[int, Meta(ge=0, le=20)]


class StreamOptions(Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None  # padding against traffic analysis: left to TLS


class JsonSchema(Struct):
    schema: dict[str, Any] | bool | None = None
    name: str = ""
    strict: bool | None = None
    description: str | None = None


class ResponseFormat(Struct, forbid_unknown_fields=True):
    type: str
    json_schema: JsonSchema | None = None


class StructuredOutputs(Struct, forbid_unknown_fields=True):
    """vLLM's: one of them set."""

    json: dict[str, Any] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class SpeculationBody(Struct, forbid_unknown_fields=True):
    """The `decodeloop` field."""

    speculation: str | None = None
    draft_len: Annotated[int, Meta(ge=0, le=_MOST)] | None = None
    drafter: str | None = None
    class_: str | None = msgspec.field(name="class", default=None)
    priority: str | None = None
    deadline_ms: Annotated[float, Meta(gt=0)] | None = None
    lossless: str | None = None


class GenerationBody(Struct, kw_only=True):
    """What both APIs have."""

    model: str = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Count = 1
    seed: Annotated[int, Meta(ge=-1, lt=2**53)] = -1
    stop: StopText | Annotated[list[StopText], Meta(max_length=16)] = msgspec.field(default_factory=list)
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=_MOST)] = 0
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Meta(ge=-1, le=_MOST)] = 0
    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] = 1.0  # beyond: logits that overflow
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1024)] = msgspec.field(default_factory=dict)
    allowed_token_ids: Annotated[list[TokenId], Meta(min_length=1)] | None = None
    bad_token_ids: list[TokenId] = msgspec.field(default_factory=list)
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1024)] = msgspec.field(default_factory=list)
    ignore_eos: bool = False
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    return_token_ids: bool = False
    add_special_tokens: bool | None = None
    priority: int = 0
    decodeloop: SpeculationBody | None = None


class CompletionBody(GenerationBody, kw_only=True):
    prompt: Any = None
    logprobs: TopCount | None = None
    best_of: Count | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: list[Any] = msgspec.field(default_factory=list)
    logprobs: bool = False
    top_logprobs: TopCount | None = None
    tools: list[Any] = msgspec.field(default_factory=list)
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
