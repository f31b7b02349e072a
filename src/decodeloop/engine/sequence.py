"""One choice of one request, on its way through the engine. Written by the scheduler and its commit routine alone."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import Enum

from decodeloop.engine.kv_cache import BlockTable
from decodeloop.engine.text.output import Output
from decodeloop.speculation.sampling import Chance, SamplingState
from decodeloop.types import FinishReason, Reason, Request, RequestRefused, TokenLogprob


class Stage(Enum):
    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(slots=True)
class Tally:
    """What a sequence has cost and earned so far; `Report` and `Usage` are read off it. Times in ms."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    overhead_ms: float = 0.0
    steps: int = 0
    cached: int = 0
    delivered: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    discarded: int = 0
    reasons: Counter[Reason] = field(default_factory=Counter)
    drafters: Counter[str] = field(default_factory=Counter)
    accepted_per_step: list[int] = field(default_factory=list)
    verified_per_step: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """tokens: prompt and committed output. computed: how many of them have their keys and values in the cache.

    A sequence with more than one token left to compute is in prefill; with exactly one, ready to decode.
    """

    id: int
    request: Request
    choice: int
    prompt_tokens: int
    tokens: list[int]
    max_tokens: int  # output tokens, at most
    eos_ids: frozenset[int]
    state: SamplingState
    chance: Chance
    output: Output
    stage: Stage = Stage.WAITING
    table: BlockTable = field(default_factory=BlockTable)
    computed: int = 0
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: RequestRefused | None = None
    queued_s: float = 0.0  # since when it waits
    entropy: float | None = None
    undelivered: deque[TokenLogprob] = field(default_factory=deque)  # log-probabilities of held-back tokens
    tally: Tally = field(default_factory=Tally)

    @property
    def organization(self) -> str:
        return self.request.identity.organization

    @property
    def output_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def batch_tier(self) -> bool:
        return self.request.priority == "batch"
