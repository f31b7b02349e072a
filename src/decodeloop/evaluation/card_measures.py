"""The measured parts of a card: acceptance, times, latency, throughput, cliff."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import numpy as np

from decodeloop.evaluation.card import (
    AcceptancePart,
    CliffPart,
    Compared,
    LatencyPart,
    LoadPoint,
    Quantiles,
    ThroughputPart,
    TimePart,
)
from decodeloop.evaluation.client.load import CUT_OFF
from decodeloop.evaluation.results import RequestResult, Results
from decodeloop.evaluation.statistics import Ratio, cliff, paired_ratio
from decodeloop.types import RequestClass

ALL = "all"
CONFIDENCE = 0.95


def acceptance(requests: Sequence[RequestResult]) -> AcceptancePart | None:
    """Of all requests whose servers told; None: none did."""
    told = [r.drafting for r in requests if r.drafting is not None and r.error is None]
    if not told:
        return None
    verified, accepted = sum(d.verified for d in told), sum(d.accepted for d in told)
    drafts = _sum([d.drafts for d in told])
    drafted, steps = _sum([d.drafted for d in told]), _sum([d.steps for d in told])
    means = [1.0 + d.accepted / d.drafts for d in told if d.drafts]
    histogram = _added(d.accepted_histogram for d in told)
    survival, conditional = by_position(histogram)
    return AcceptancePart(
        steps=steps,
        drafts=drafts,
        drafted=drafted,
        verified=verified,
        accepted=accepted,
        emitted=None if drafts is None else accepted + drafts,
        mal_request_mean=mean_of(means),
        mal_step_weighted=1.0 + accepted / drafts if drafts else None,
        rate=accepted / verified if verified else None,
        draft_yield=accepted / drafted if drafted else None,
        no_draft_share=1.0 - drafts / steps if steps and drafts is not None else None,
        histogram=histogram,
        survival=survival,
        conditional=conditional,
    )


def by_position(histogram: Sequence[int]) -> tuple[tuple[float, ...] | None, tuple[float, ...] | None]:
    """(survival, conditional) from the histogram of accepted lengths; None: it isn't told."""
    drafts = sum(histogram)
    if not drafts:
        return None, None
    kept = [sum(histogram[k:]) for k in range(len(histogram))]
    survival = tuple(count / drafts for count in kept[1:])
    return survival, tuple(after / before for before, after in itertools.pairwise(kept) if before)


def phase_times(requests: Sequence[RequestResult]) -> TimePart | None:
    told = [r.times for r in requests if r.times is not None and r.error is None]
    if not told:
        return None

    def mean(name: str) -> float:
        return float(np.mean([getattr(times, name) for times in told]))

    return TimePart(
        queue_ms=mean("queue_ms"),
        prefill_ms=mean("prefill_ms"),
        draft_ms=mean("draft_ms"),
        verify_ms=mean("verify_ms"),
        sample_ms=mean("sample_ms"),
        scheduler_ms=mean("overhead_ms"),
        source="the server's own account of each request",
        overlap=False,
    )


def load_point(results: Results, label: str, level: float) -> LoadPoint:
    turns = [turn for turn in results.turns if (turn.arm, turn.level) == (label, level)]
    steady = results.steady(arm=label, level=level)
    seconds = sum(turn.seconds for turn in turns)
    lags = [r.lag_ms for r in steady]
    return LoadPoint(
        level=level,
        seconds=seconds,
        requests=len(steady),
        errors=sum(turn.errors for turn in turns),
        drops=sum(1 for r in steady if r.error not in (None, CUT_OFF)),
        concurrency=sum(turn.concurrency * turn.seconds for turn in turns) / seconds if seconds else 0.0,
        lag_p99_ms=float(np.quantile(lags, 0.99)) if lags else None,
    )


def latencies(results: Results, label: str, levels: Iterable[float]) -> Iterable[LatencyPart]:
    for level in levels:
        own = [r for r in results.steady(arm=label, level=level) if r.error is None]
        for kind in (None, *classes_of(own)):
            some = [r for r in own if kind in (None, r.request_class)]
            pieces = sum(len(r.chunk_s) for r in some)
            yield LatencyPart(
                level=level,
                request_class=None if kind is None else str(kind),
                ttft_ms=quantiles(r.ttft_ms for r in some if r.ttft_ms is not None),
                tpot_ms=quantiles(r.tpot_ms for r in some if r.tpot_ms is not None),
                e2e_ms=quantiles(r.e2e_ms for r in some),
                gap_ms=quantiles(gap for r in some for gap in r.gaps_ms),
                tokens_per_piece=sum(sum(r.chunk_tokens) for r in some) / pieces if pieces else None,
                exact_pieces=all(r.exact_chunks for r in some),
            )


def throughput(results: Results, cutless: Results, label: str, baseline: str | None, level: float) -> ThroughputPart:
    run = results.run(level)
    turns = [turn for turn in results.turns if (turn.arm, turn.level) == (label, level)]
    steady = [r for r in results.steady(arm=label, level=level) if r.error is None]
    seconds = sum(turn.seconds for turn in turns)
    prompt = _sum([r.prompt_tokens for r in steady])
    rate = sum(turn.tokens for turn in turns) / seconds if seconds else 0.0
    return ThroughputPart(
        level=level,
        output_tokens_per_s=rate,
        total_tokens_per_s=None if prompt is None or not seconds else rate + prompt / seconds,
        requests_per_s=len(steady) / seconds if seconds else 0.0,
        block_rates=tuple(run.rates(label)),
        against_baseline=_compared(results, label, baseline, level),
        without_loops=_compared(cutless, label, baseline, level, by_user=True),
    )


def cliffs(results: Results, label: str, baseline: str, levels: Sequence[float]) -> dict[str, CliffPart]:
    """In the run's own mix of classes: `all` by throughput, a class by the speed that its requests get."""
    found: dict[str, CliffPart] = {}
    for kind in (None, *classes_of(results.steady(arm=label))):
        ratios = {level: r for level in levels if (r := _ratio(results, label, baseline, level, kind)) is not None}
        last, first = cliff(ratios)  # type: ignore[arg-type]
        found[ALL if kind is None else str(kind)] = CliffPart(
            last_gain=last, first_loss=first, levels=tuple(sorted(ratios))
        )
    return found


def quantiles(values: Iterable[float]) -> Quantiles | None:
    """As far as the sample goes: no p99 of fewer than 1,000 values."""
    found = np.array(list(values), dtype=float)
    if not len(found):
        return None
    at = {"p90": 50, "p95": 100, "p99": 1000}
    return Quantiles(
        count=len(found),
        mean=float(found.mean()),
        p50=float(np.median(found)),
        **{
            name: float(np.quantile(found, int(name[1:]) / 100)) if len(found) >= least else None
            for name, least in at.items()
        },
    )


def _ratio(results: Results, label: str, baseline: str, level: float, kind: RequestClass | None = None) -> Ratio | None:
    run = results.run(level, kind)
    try:
        return paired_ratio(run.rates(label), run.rates(baseline), level=CONFIDENCE)
    except (ValueError, ZeroDivisionError, KeyError):
        return None  # a block without a token of this class


def _compared(
    results: Results, label: str, baseline: str | None, level: float, *, by_user: bool = False
) -> Compared | None:
    """by_user: by the requests' own decoding speeds, for results of which requests were taken out."""
    if baseline is None:
        return None
    ratio = _user_ratio(results, label, baseline, level) if by_user else _ratio(results, label, baseline, level)
    if ratio is None:
        return None
    return Compared(
        ratio=ratio.ratio,
        low=ratio.low,
        high=ratio.high if math.isfinite(ratio.high) else None,
        standard_error=ratio.error if math.isfinite(ratio.error) else None,
        blocks=ratio.blocks,
    )


def _user_ratio(results: Results, label: str, baseline: str, level: float) -> Ratio | None:
    rates: dict[str, list[float]] = {label: [], baseline: []}
    for block in results.complete_blocks(level):
        for arm, own in rates.items():
            some = [r for r in results.steady(arm=arm, level=level) if r.block == block and r.tpot_ms is not None]
            tokens = sum(sum(r.chunk_tokens[1:]) for r in some)
            seconds = sum(r.chunk_s[-1] - r.chunk_s[0] for r in some)
            own.append(tokens / seconds if seconds > 0 else 0.0)
    try:
        return paired_ratio(rates[label], rates[baseline], level=CONFIDENCE) if rates[label] else None
    except ValueError:
        return None


def classes_of(requests: Iterable[RequestResult]) -> list[RequestClass]:
    found = {r.request_class for r in requests}
    return [kind for kind in RequestClass if kind in found]


def _sum(values: Sequence[int | None]) -> int | None:
    """None as soon as one isn't told: a part is no sum."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def mean_of(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _added(histograms: Iterable[Sequence[int]]) -> tuple[int, ...]:
    total: list[int] = []
    for histogram in histograms:
        total += [0] * (len(histogram) - len(total))
        for value, count in enumerate(histogram):
            total[value] += count
    return tuple(total)
