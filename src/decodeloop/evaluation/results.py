"""What a measurement leaves behind: one record a request, one a turn, and the plan that they belong to.

The contract of everything that measures (load client, `bench`, `cliff`, importers of other clients) with everything
that judges (statistics, economics, frontier, report, card). A results file is JSON lines, appended to and never
rewritten: first the `Plan`, then for every turn its `RequestResult`s in the order in which they ended and, last, its
`Turn`. A turn counts once its `Turn` line is there: requests of an interrupted one are in the file and are not read.
So a run is resumed by taking the turns that are missing (`Results.missing`).

Words. An *arm* is a serving configuration. A *level* is a load: requests at once (closed loop) or requests a second
(open loop). A *cell* is a level, perhaps of one class only. A *block* serves the same requests with every arm, each
twice, in mirrored order (`arms.order`): `turn` is 0 on the way there and 1 on the way back. Figures are paired by
block.

Times of a request are seconds on one clock (the client's monotonic one, from the start of its turn). Nothing is
derived that is stored: TTFT, TPOT and gaps follow from the stamps. Counts that a server doesn't tell are None, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from decodeloop.evaluation.arms import Measurement, Run
from decodeloop.evaluation.plan import Arm, LoadKind, Mode, Plan, TurnKey, WorkloadFacts
from decodeloop.types import RequestClass

__all__ = [
    "Arm",
    "Drafting",
    "LoadKind",
    "Mode",
    "PhaseTimes",
    "Plan",
    "RequestResult",
    "Results",
    "Turn",
    "TurnKey",
    "WorkloadFacts",
    "key_of",
    "measurement",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What speculation did for a request, by the verdicts (before stops and caps).

    drafts: steps that verified a draft; None: not told. steps: all decode steps, if told. drafted: tokens proposed, if
    told (it exceeds `verified` where a policy trims). accepted_histogram[j]: drafts of which j tokens were accepted; ()
    if not told. verified_histogram[j]: drafts of which j tokens were verified; () if not told.
    """

    drafts: int | None
    verified: int
    accepted: int
    drafted: int | None = None
    steps: int | None = None
    discarded: int | None = None
    accepted_histogram: tuple[int, ...] = ()
    verified_histogram: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """The request's share of its steps' times, in milliseconds, as the server tells them."""

    queue_ms: float = 0.0
    prefill_ms: float = 0.0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    sample_ms: float = 0.0
    overhead_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestResult:
    """One request as its client saw it.

    arm, level, block, turn: which turn it belongs to. weight: how much real volume it stands for, relative to the
    others. session: groups requests of one task. due_s: when it should have been sent (closed loop: when its place
    became free). chunk_s, chunk_tokens: arrival and size of each streamed piece; tokens of a piece are estimated evenly
    where the server doesn't say (`exact_chunks` false). ramp: sent while the load was not yet, or no longer, the
    level's: left out of figures. error: None, or why there is no whole answer. text_hash: SHA-256 of the text.
    loops: whether the text repeats a run of 12 tokens (words, where token ids aren't told).
    """

    arm: str
    level: float
    block: int
    turn: int
    id: str
    request_class: RequestClass
    weight: float = 1.0
    session: str | None = None
    due_s: float
    sent_s: float
    ended_s: float
    chunk_s: tuple[float, ...] = ()
    chunk_tokens: tuple[int, ...] = ()
    exact_chunks: bool = True
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int = 0
    drafting: Drafting | None = None  # None: the server doesn't tell, or did not speculate for this request
    drafter: str | None = None
    times: PhaseTimes | None = None
    seed: int | None = None
    finish_reason: str | None = None
    error: str | None = None
    ramp: bool = False
    text_hash: str = ""
    loops: bool | None = None
    text: str | None = None  # only where keeping it was asked for

    @property
    def lag_ms(self) -> float:
        """How late the client was."""
        return (self.sent_s - self.due_s) * 1e3

    @property
    def ttft_ms(self) -> float | None:
        """Request sent -> first content; None: there was none."""
        return (self.chunk_s[0] - self.sent_s) * 1e3 if self.chunk_s else None

    @property
    def tpot_ms(self) -> float | None:
        """Time per output token after the first piece, whose own tokens are left out of the count."""
        later = sum(self.chunk_tokens[1:])
        return (self.chunk_s[-1] - self.chunk_s[0]) * 1e3 / later if later > 0 else None

    @property
    def e2e_ms(self) -> float:
        return (self.ended_s - self.sent_s) * 1e3

    @property
    def gaps_ms(self) -> tuple[float, ...]:
        """Step gaps: between streamed pieces, each of which may hold several tokens."""
        return tuple((b - a) * 1e3 for a, b in zip(self.chunk_s, self.chunk_s[1:], strict=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """An arm serving a block's requests at a level, once.

    seconds: of steady load, ramps left out; tokens: output tokens that arrived in them (every request's, whole or
    not). requests, errors: of the whole turn, ramps included. concurrency: requests at once, averaged over the steady
    seconds. counters: what the server's own totals grew by in the whole turn (`vllm:spec_decode_num_drafts_total` ->
    812.0), `energy_j` where it can be read.
    """

    arm: str
    level: float
    block: int
    turn: int
    began_at: str  # ISO 8601, UTC
    seconds: float
    tokens: int
    requests: int
    errors: int
    concurrency: float
    counters: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Results:
    """A results file, read. requests: those of finished turns, ramps included (`steady` leaves them out)."""

    plan: Plan
    turns: tuple[Turn, ...] = ()
    requests: tuple[RequestResult, ...] = ()

    @cached_property
    def _by_turn(self) -> Mapping[TurnKey, Sequence[RequestResult]]:
        found: dict[TurnKey, list[RequestResult]] = {}
        for request in self.requests:
            found.setdefault(key_of(request), []).append(request)
        return found

    def steady(
        self, *, arm: str | None = None, level: float | None = None, request_class: RequestClass | None = None
    ) -> list[RequestResult]:
        """Requests outside the ramps, of an arm, a level, a class; None: of all."""
        return [
            request
            for request in self.requests
            if not request.ramp
            and arm in (None, request.arm)
            and level in (None, request.level)
            and request_class in (None, request.request_class)
        ]

    def cold(self, arm: str) -> bool:
        """Whether every one of its answers says that no token of its prompt came from a prefix cache."""
        told = [r.cached_tokens for r in self.steady(arm=arm) if r.error is None]
        return bool(told) and all(cached == 0 for cached in told)

    def of(self, turn: Turn) -> Sequence[RequestResult]:
        return self._by_turn.get(key_of(turn), ())

    def missing(self) -> list[TurnKey]:
        """Turns still to take. A block of which an arm's turn is missing at some level is begun again at that level:
        the pairs of a block must be neighbours in time."""
        done = {key_of(turn) for turn in self.turns}
        torn = {key[:2] for key in self.plan.turns() if key not in done}
        return [key for key in self.plan.turns() if key[:2] in torn]

    def complete_blocks(self, level: float) -> list[int]:
        torn = {(key[0], key[1]) for key in self.missing()}
        return [block for block in range(self.plan.blocks) if (level, block) not in torn]

    def run(self, level: float, request_class: RequestClass | None = None) -> Run:
        """The complete blocks of a level as `arms.Run`: what the statistics pair.

        With a class, a turn's `seconds` are the class's own decoding time, summed over its requests: its rate is what
        one of its users sees, and classes that share a batch can be told apart.
        """
        run = Run()
        blocks = set(self.complete_blocks(level))
        for turn in self.turns:
            if turn.level == level and turn.block in blocks:
                run.add(turn.arm, turn.block, measurement(turn, self.of(turn), request_class))
        return run


def key_of(record: Turn | RequestResult) -> TurnKey:
    return record.level, record.block, record.turn, record.arm


def measurement(
    turn: Turn, requests: Iterable[RequestResult], request_class: RequestClass | None = None
) -> Measurement:
    """A turn as `arms.Measurement`: of all its requests, or of one class."""
    steady = [r for r in requests if not r.ramp and request_class in (None, r.request_class)]
    whole = [r for r in steady if r.error is None]
    timed = [r for r in whole if r.tpot_ms is not None]
    tokens, seconds = turn.tokens, turn.seconds
    if request_class is not None:
        tokens = sum(sum(r.chunk_tokens[1:]) for r in timed)
        seconds = sum(r.chunk_s[-1] - r.chunk_s[0] for r in timed)
    return Measurement(
        tokens=tokens,
        seconds=seconds,
        requests=len(steady),
        errors=len(steady) - len(whole),
        ttft_ms=tuple(r.ttft_ms for r in whole if r.ttft_ms is not None),
        tpot_ms=tuple(r.tpot_ms for r in timed if r.tpot_ms is not None),
        output_tokens=tuple(r.completion_tokens for r in whole),
        client_lag_ms=tuple(r.lag_ms for r in steady),
    )
