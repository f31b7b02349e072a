"""What a caller gets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decodeloop.types.names import FinishReason, RequestClass


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of an emitted token under the target's raw (unprocessed) distribution."""

    token_id: int
    token: str
    token_bytes: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call; `name` and `id` come with its first piece."""

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    prompt: int = 0
    cached: int = 0
    completion: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """How an answer came about: the `decodeloop` answer key. Times are the request's share of its steps."""

    seed: int
    request_class: RequestClass
    drafter: str | None
    queue_ms: float
    prefill_ms: float
    draft_ms: float
    verify_ms: float
    sample_ms: float
    overhead_ms: float
    steps: int  # decode steps, drafted or not
    drafted: int
    verified: int
    accepted: int
    discarded: int
    reasons: Mapping[str, int]  # Reason -> steps
    accepted_per_step: tuple[int, ...] = ()  # of the steps that verified a draft
    verified_per_step: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """A piece of the answer to one choice.

    `report` comes once, with the request's last chunk, and with it the final `usage`; an earlier chunk may carry the
    usage known so far (the prompt's size with the first chunk, say).
    """

    index: int = 0
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it
    usage: Usage | None = None
    report: Report | None = None


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of /v1/models."""

    id: str
    created: int
    max_context: int
    owned_by: str = "decodeloop"
