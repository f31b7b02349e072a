"""What a caller asks, from HTTP to the decode loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from decodeloop.types.arrays import FloatArray
from decodeloop.types.names import RequestClass, SpeculationMode

LogitHook = Callable[[Sequence[int], FloatArray], FloatArray]  # (tokens so far, logits [V]) -> logits [V]


class RequestRefused(Exception):
    """A request that cannot be served, in words its sender can act on.

    retry_after_s: when it may be sent again (429 and 503); inf: never, so its sender should not retry.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class GrammarSpec:
    """A constraint on the output. kind: json_object, json_schema, regex, choice (source: a JSON list of strings) or
    lark; source: its text."""

    kind: str
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the target's distribution is shaped and when the output ends. Checked by `wire`, used by `sampling`."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0: all
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    allowed_token_ids: tuple[int, ...] = ()  # empty: all
    banned_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = None  # None: up to the context limit
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # None: none; n: the emitted token and the n likeliest
    grammar: GrammarSpec | None = None
    logit_hook: LogitHook | None = None  # embedded use only; runs for every verified position


@dataclass(frozen=True, slots=True)
class Speculation:
    """What the caller wants of speculation; the `decodeloop` body field."""

    mode: SpeculationMode = SpeculationMode.AUTO
    draft_len: int | None = None  # force without draft_len: the policy's maximum
    drafter: str | None = None
    denied: bool = False  # off because the caller may not speculate, not because it asked so
    lossless: str = ""  # what the pool's status must be at least, of `routing.DEMANDS`; "": anything


@dataclass(frozen=True, slots=True)
class Slo:
    ttft_ms: float | None = None
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Identity:
    organization: str = "local"
    user: str = ""
    agent: str = ""
    capability: str = ""
    key_id: str = ""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """Messages as OpenAI sends them (checked JSON), rendered by the model's chat template."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...] = ()
    tool_choice: str | Mapping[str, Any] = "auto"
    parallel_tool_calls: bool = True  # whether an answer may hold several calls
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


Prompt = str | tuple[int, ...] | ChatPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    id: str
    model: str
    prompt: Prompt
    params: SamplingParams
    seed: int  # < 2**53; drawn at entry when the caller gave none
    n: int = 1
    speculation: Speculation = Speculation()
    identity: Identity = Identity()
    request_class: RequestClass = RequestClass.GENERAL_CHAT
    slo: Slo = Slo()
    priority: str = "interactive"  # or "batch", which yields
    deadline_ms: float | None = None
    arrived_s: float = 0.0  # time.monotonic()
