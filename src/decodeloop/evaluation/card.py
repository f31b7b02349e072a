"""The result card: what must be said of a measurement so that another can be held against it.

A card is about one configuration (an arm) of one run. Its JSON Schema is made from these types and published in
docs/card.schema.json. What isn't known is null, and `card_compare` lists it: silence is information too. Times are
milliseconds, rates are per second, shares are between 0 and 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec
import orjson

SCHEMA = "decodeloop.card/1"


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Common to all parts of a card."""


class Quantiles(Part, frozen=True, kw_only=True):
    """p99 only of 1,000 values or more, p95 of 100: null says that there were too few."""

    count: int
    mean: float
    p50: float
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None


class IdentityPart(Part, frozen=True, kw_only=True):
    """mode: R real, S synthetic acceptance, M simulated. artefacts: name -> SHA-256 of what the card was made from."""

    id: str
    arm: str
    baseline: str | None
    mode: Literal["R", "S", "M"]
    date: str
    versions: Mapping[str, str]
    commit: str | None = None
    artefacts: Mapping[str, str] = {}
    author: Literal["vendor", "independent", "own"] = "own"
    command: str | None = None


class SystemPart(Part, frozen=True, kw_only=True):
    hardware: Mapping[str, Any] | None = None
    clocks: str | None = None
    driver: str | None = None
    engine: str | None = None
    engine_version: str | None = None
    flags: Mapping[str, Any] | None = None
    parallelism: str | None = None
    dtypes: Mapping[str, str] | None = None
    max_batch: int | None = None
    chunked_prefill: bool | None = None
    prefix_cache: str | None = None


class Model(Part, frozen=True, kw_only=True):
    name: str | None = None
    revision: str | None = None
    sha256: str | None = None
    precision: str | None = None
    parameters: int | None = None
    tokenizer_sha256: str | None = None
    template_sha256: str | None = None
    training: str | None = None  # of a drafter: on what it was trained


class ModelsPart(Part, frozen=True, kw_only=True):
    target: Model
    drafter: Model | None = None


class SpeculationPart(Part, frozen=True, kw_only=True):
    """off_share: share of decode steps that verified no draft."""

    method: str | None = None
    max_draft_len: int | None = None
    shape: Literal["chain", "tree"] | None = None
    draft_sampling: str | None = None
    acceptance_rule: str | None = None
    policy: str | None = None
    policy_version: str | None = None
    off_share: float | None = None
    synthetic: bool | None = None


class LosslessPart(Part, frozen=True, kw_only=True):
    """claimed: by whoever configured it. equal, compared: answers against the baseline's, same requests and seeds.
    null_*: the baseline's against its own in a second run, where that was measured."""

    claimed: bool | None = None
    test: str | None = None
    compared: int | None = None
    equal: int | None = None
    certificate: str | None = None
    null_compared: int | None = None
    null_equal: int | None = None


class WorkloadPart(Part, frozen=True, kw_only=True):
    name: str
    sha256: str
    sources: tuple[str, ...]
    licence: str
    counts: Mapping[str, int]
    shares: Mapping[str, float]
    prompt_tokens: Quantiles | None
    output_tokens: Quantiles | None
    max_tokens: int | None
    sampling: Mapping[str, Any] | None
    fresh: bool | None  # whether no request came twice
    looping_share: float | None  # of answers


class LoadPoint(Part, frozen=True, kw_only=True):
    """level: requests at once (closed loop) or a second (open loop). drops: requests without a whole answer."""

    level: float
    seconds: float
    requests: int
    errors: int
    drops: int
    concurrency: float
    lag_p99_ms: float | None


class LoadPart(Part, frozen=True, kw_only=True):
    kind: Literal["closed", "open"]
    arrivals: str
    speed: float
    points: tuple[LoadPoint, ...]


class AcceptancePart(Part, frozen=True, kw_only=True):
    """Counts of the verdicts. MAL: emitted per draft, steps without one left out, as the mean of requests and over all
    steps. rate = accepted / verified; draft_yield = accepted / drafted. survival[k]: share of drafts with the first k+1
    all accepted; conditional[k]: of those with the first k, the share with k+1."""

    steps: int | None
    drafts: int | None
    drafted: int | None
    verified: int
    accepted: int
    emitted: int | None
    mal_request_mean: float | None
    mal_step_weighted: float | None
    rate: float | None
    draft_yield: float | None
    no_draft_share: float | None
    histogram: tuple[int, ...] = ()
    survival: tuple[float, ...] | None = None
    conditional: tuple[float, ...] | None = None


class TimePart(Part, frozen=True, kw_only=True):
    """Mean milliseconds a request. scheduler: what is neither of the others. overlap: whether phases ran at once."""

    queue_ms: float
    prefill_ms: float
    draft_ms: float
    verify_ms: float
    sample_ms: float
    scheduler_ms: float
    source: str
    overlap: bool | None = None


class LatencyPart(Part, frozen=True, kw_only=True):
    """gap_ms: between streamed pieces, which hold tokens_per_piece tokens on average."""

    level: float
    request_class: str | None  # null: all
    ttft_ms: Quantiles | None
    tpot_ms: Quantiles | None
    e2e_ms: Quantiles | None
    gap_ms: Quantiles | None
    tokens_per_piece: float | None
    exact_pieces: bool


class Compared(Part, frozen=True, kw_only=True):
    """Paired by block against the baseline: geometric mean and interval."""

    ratio: float
    low: float
    high: float | None
    standard_error: float | None
    blocks: int


class ThroughputPart(Part, frozen=True, kw_only=True):
    """block_rates: output tokens a second of each block. without_loops: the ratio with looping answers cut."""

    level: float
    output_tokens_per_s: float
    total_tokens_per_s: float | None
    requests_per_s: float
    block_rates: tuple[float, ...]
    against_baseline: Compared | None = None
    without_loops: Compared | None = None


class CliffPart(Part, frozen=True, kw_only=True):
    """Between which levels speculation stops paying; null: not reached within the sweep."""

    last_gain: float | None
    first_loss: float | None
    levels: tuple[float, ...]


class StatisticsPart(Part, frozen=True, kw_only=True):
    blocks: int
    order: str
    estimator: str
    confidence: float
    seed: int
    exclusions: tuple[str, ...]


class ValidityPart(Part, frozen=True, kw_only=True):
    valid: bool
    faults: tuple[str, ...]
    caveats: tuple[str, ...]


class Card(Part, frozen=True, kw_only=True):
    schema: Literal["decodeloop.card/1"] = "decodeloop.card/1"
    identity: IdentityPart
    system: SystemPart
    models: ModelsPart
    speculation: SpeculationPart
    losslessness: LosslessPart
    workload: WorkloadPart
    load: LoadPart
    acceptance: Mapping[str, AcceptancePart]  # by class; `all`
    time: Mapping[str, TimePart]
    latency: tuple[LatencyPart, ...]
    throughput: tuple[ThroughputPart, ...]
    economics: Mapping[str, Any] | None = None
    cliff: Mapping[str, CliffPart]
    statistics: StatisticsPart
    validity: ValidityPart
    sha256: str = ""  # of everything else


def content_hash(card: Card) -> str:
    """SHA-256 of the card's canonical JSON (sorted keys, no spaces) without its own hash."""
    fields = msgspec.to_builtins(card)
    del fields["sha256"]
    return hashlib.sha256(orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)).hexdigest()


def sealed(card: Card) -> Card:
    return msgspec.structs.replace(card, sha256=content_hash(card))


def encode(card: Card) -> bytes:
    return orjson.dumps(msgspec.to_builtins(card), option=orjson.OPT_INDENT_2) + b"\n"


def decode(raw: bytes) -> Card:
    """Raises ValueError for what is no card, naming the place, and for a card that was changed after it was sealed."""
    try:
        card = msgspec.json.decode(raw, type=Card)
    except msgspec.MsgspecError as error:
        raise ValueError(f"no result card: {error}") from error
    if card.sha256 != content_hash(card):
        raise ValueError("the card was changed after it was sealed: its content hash differs")
    return card


def read(path: Path) -> Card:
    try:
        return decode(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a card."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "decodeloop result card",
        **msgspec.json.schema(Card),
    }
