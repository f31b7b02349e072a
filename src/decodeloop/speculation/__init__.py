"""Propose tokens cheaply, keep only what the target would have said."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from decodeloop.speculation.block import NO_DRAFT, Draft, DraftBlock, Verdict
from decodeloop.speculation.forward import Runner
from decodeloop.speculation.lookup import Lookups
from decodeloop.speculation.sampling import Chance, Distribution, SamplingState
from decodeloop.types import Knowledge

__all__ = [
    "NO_DRAFT",
    "Draft",
    "DraftBlock",
    "DraftRequest",
    "Drafter",
    "DrafterSetup",
    "TargetRows",
    "Verdict",
    "Verifier",
]


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """One sequence, as a drafter sees it. Nothing in it may be changed.

    tokens: prompt and committed output. It only ever grows between calls with the same sequence_id.
    state: the sampling state after `tokens`; fork it to advance over drafted tokens.
    chance: the request's noise; `shares_noise` says whether to draw with the verifier's own (coupled) noise.
    """

    sequence_id: int
    tokens: Sequence[int]
    draft_len: int
    state: SamplingState
    chance: Chance
    organization: str = ""
    shares_noise: bool = True


@dataclass(frozen=True, slots=True)
class DrafterSetup:
    """What a drafter is built from. `open_runner(spec)` opens a draft model ("layers:24", "int4", a path).

    kv_memory_mb: what the drafter's own KV may take, in MiB. lookups: None: those written in Python.
    """

    vocab_size: int
    max_context: int
    max_sequences: int
    max_draft_len: int
    kv_memory_mb: float = 512.0
    open_runner: Callable[[str], Runner] | None = None
    lookups: Lookups | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


class Drafter(Protocol):
    """Guesses what the target will say next. Built as `cls(setup)`; used from one thread."""

    free: bool  # costs so little that it may run and be shadow-scored at every step

    def propose(self, requests: Sequence[DraftRequest]) -> DraftBlock:
        """For each request at most draft_len tokens; fewer or none when it has nothing to say."""
        ...

    def finish(self, sequence_id: int, tokens: Sequence[int], organization: str) -> None:
        """The sequence ended, with this text: forget its state (and perhaps learn from it)."""
        ...

    def memory_bytes(self) -> Mapping[str, int]:
        """What it holds: draft weights, draft KV, indices."""
        ...


class TargetRows(Protocol):
    """The target's processed distributions after the context (row 0) and after each drafted token i (row i + 1).

    Row i of a chain has seen the drafted x_<i (logits and sampling state alike) and decides the token at position(i);
    of a tree, the path to token i - 1. Rows are asked in order (down one path), and never behind a token of p = 0.
    """

    def __getitem__(self, i: int) -> Distribution: ...

    def position(self, i: int) -> int:
        """Absolute position (prompt included) of the token that row i decides."""
        ...


class Verifier(Protocol):
    """Keeps the longest part of a draft that leaves the target's law unchanged. Built as `cls()`.

    admits: the most that the policy's verify lengths may know of a *sampled* draft (see Knowledge).
    shares_noise: whether sampling drafters should draw with the coupled noise.
    """

    admits: Knowledge
    shares_noise: bool

    def judge(self, draft: Draft, rows: TargetRows, chance: Chance) -> Verdict: ...
