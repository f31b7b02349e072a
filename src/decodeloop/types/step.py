"""What the decode loop, its policy and its observers say to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from decodeloop.types.arrays import FloatArray
from decodeloop.types.names import FinishReason, Knowledge, Reason, RequestClass
from decodeloop.types.request import Slo, Speculation

STEPS_SCHEMA = "decodeloop.steps/1"  # of a file of StepRecords: what its first line says


@dataclass(frozen=True, slots=True)
class Load:
    running: int  # sequences in the step
    waiting: int
    context_tokens: int  # summed over the running ones
    kv_free_fraction: float
    oldest_wait_ms: float = 0.0
    prefill_tokens: int = 0  # tokens of unfinished prompts that share the step


@dataclass(frozen=True, slots=True)
class DecodeRequest:
    """What a policy sees of a sequence that is ready to decode.

    proposals: what free drafters have to say already, a function of the context: drafter -> confidence of survival per
    position, () for nothing. Drafters that are missing there have not been asked.
    """

    request_id: str
    tenant: str
    request_class: RequestClass
    context_tokens: int
    max_draft_len: int  # what room, memory and limits allow
    cap: Reason | None  # why max_draft_len is below the engine's own maximum, if it is
    drafters: tuple[str, ...]  # the ones that could serve it, preferred first
    speculation: Speculation = Speculation()
    slo: Slo = Slo()
    temperature: float = 0.0
    entropy: float | None = None  # nats, of the target's last row
    proposals: Mapping[str, Sequence[float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """Per request, before anything is drawn: how much to draft and with which drafter (None: plain).

    held: indices, rising, of requests that sit this step out for others' sake; all else leaves them out.
    """

    draft_lens: tuple[int, ...]
    drafters: tuple[str | None, ...]
    reasons: tuple[Reason, ...]
    held: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Scores:
    """Per request and draft position, how likely acceptance up to there is: values[i] has [draft_len_i]."""

    values: tuple[FloatArray, ...]
    knowledge: Knowledge


@dataclass(frozen=True, slots=True)
class Decision:
    """gain_ms: what verifying is expected to save over decoding as many tokens plainly.
    knowledge: what the lengths know of the drafts they cut.

    PREFIX vouches that whether a draft's token k is verified was settled by what comes before it (scores of k and
    earlier, themselves PREFIX; other requests; load). The best of all lengths isn't: it weighs later scores as well.
    """

    verify_lens: tuple[int, ...]
    reasons: tuple[Reason, ...]
    expected_tokens: float | None = None
    expected_ms: float | None = None
    knowledge: Knowledge = Knowledge.SELF
    gain_ms: float | None = None


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    survival: FloatArray  # [K] P(the first k+1 draft tokens are all accepted)
    observations: FloatArray  # [K] effective count behind each value


class CostModel(Protocol):
    """What things cost on this machine, in milliseconds."""

    def step_ms(self, tokens: int, context: int, sequences: int) -> float:
        """One forward over `tokens` packed tokens of `sequences` sequences with `context` cached tokens in all."""
        ...

    def draft_ms(self, drafter: str, depth: int, sequences: int) -> float: ...


@dataclass(frozen=True, slots=True)
class Commit:
    """What became of a verdict: tokens that are now output, and those a stop or a cap threw away."""

    tokens: tuple[int, ...]
    discarded: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One sequence's part in a step. emitted + discarded == accepted + 1 for a decoding row; all 0 in prefill."""

    request_id: str
    tenant: str
    request_class: RequestClass
    reason: Reason
    drafter: str | None = None
    context_tokens: int = 0
    prefill_tokens: int = 0
    draft_len: int = 0
    verify_len: int = 0
    scores: tuple[float, ...] = ()
    accepted: int = 0
    emitted: int = 0
    discarded: int = 0
    shadow_match: Mapping[str, int] = field(default_factory=dict)  # free drafter -> tokens it had right
    entropy: tuple[float, ...] = ()  # nats, of p on the emitted rows
    token_ids: tuple[int, ...] | None = None  # only by opt-in


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One step, as measured: everything a policy may learn from. draft + verify + sample + overhead = step."""

    step: int
    at_s: float
    load: Load
    draft_ms: float
    verify_ms: float
    sample_ms: float
    overhead_ms: float
    step_ms: float
    predicted_ms: float | None = None
    rows: tuple[StepRow, ...] = ()


@dataclass(frozen=True, slots=True)
class Provenance:
    version: str
    git_sha: str = ""
    model_hash: str = ""
    drafter_hash: str = ""
    device: str = ""
    config_hash: str = ""
