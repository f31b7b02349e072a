"""The report's sections on tokens: what was accepted, where the time of a step goes, latency, what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from decodeloop.evaluation.card_measures import acceptance
from decodeloop.evaluation.charts_plots import position_bars, stacked
from decodeloop.evaluation.economics_run import met, volumes
from decodeloop.evaluation.report_words import Chart, Section, Table, length, load_name, ms, percent, ratio, told
from decodeloop.evaluation.results import LoadKind, PhaseTimes, RequestResult, Results
from decodeloop.evaluation.statistics import attainment, log_ratios, ratio_of
from decodeloop.types import Slo

P95_REQUESTS, P99_REQUESTS = 100, 1000  # fewer say nothing of such a percentile
PARTS = ("prefill", "draft", "verify", "sample", "overhead")


def acceptance_section(results: Results, arm: str, level: float) -> Section | None:
    """None where the server tells nothing of drafts."""
    steady = results.steady(arm=arm, level=level)
    whole = acceptance(steady)
    if whole is None or not whole.verified:
        return None
    groups = {"all": whole}
    for c in volumes(results):
        own = acceptance([r for r in steady if r.request_class is c])
        if own is not None and own.verified:
            groups[str(c)] = own
    heads = (
        "class",
        "drafts",
        "MAL",
        "MAL, mean over requests",
        "acceptance rate",
        "draft yield",
        "steps without a draft",
    )
    rows = tuple(
        (
            name,
            "not told" if a.drafts is None else str(a.drafts),
            length(a.mal_step_weighted),
            length(a.mal_request_mean),
            told(a.rate),
            told(a.draft_yield),
            told(a.no_draft_share),
        )
        for name, a in groups.items()
    )
    charts = []
    if whole.survival and whole.conditional:
        series = [
            ("survival: all up to here accepted", whole.survival),
            ("conditional: accepted once here", whole.conditional),
        ]
        svg = position_bars(series, title="Acceptance by position")
        charts.append(Chart(svg, "Of all drafts; a draft that was shorter than a position has not survived to it."))
    loops = [r for r in steady if r.loops is not None]
    share = sum(bool(r.loops) for r in loops) / len(loops) if loops else None
    return Section(
        title="Acceptance",
        lead=f"{arm}: MAL {length(whole.mal_step_weighted)} tokens a draft, the bonus counted; {told(whole.rate)} of "
        "the verified tokens accepted. Steps without a draft are left out and their share is given.",
        charts=tuple(charts),
        tables=(Table(heads, rows),),
        notes=(f"Answers that loop (a run of 12 tokens comes again), which flatters copying drafters: {told(share)}.",),
    )


def step_time_section(results: Results) -> Section | None:
    """None where no server tells times."""
    closed = results.plan.load is LoadKind.CLOSED
    rows = []
    for arm in results.plan.arms:
        for level in results.plan.levels:
            own = [r for r in results.steady(arm=arm.label, level=level) if r.times is not None and r.error is None]
            tokens = sum(r.completion_tokens for r in own)
            if tokens:
                name = f"{arm.label}, {load_name(level, closed=closed)}"
                rows.append((name, [_part(own, part) / tokens for part in PARTS]))
    if not rows:
        return None
    svg = stacked(rows, PARTS, axis="ms of device time per output token", title="Where the time goes")
    table = tuple((name, *(f"{value:.3f}" for value in values), f"{sum(values):.3f}") for name, values in rows)
    return Section(
        title="Where the time goes",
        lead="Device time per output token, split as the server measured it: reading prompts, drafting, verifying (the "
        "forward), sampling, overhead.",
        charts=(Chart(svg, "ms of device time per output token."),),
        tables=(Table(("ms per output token", *PARTS, "sum"), table),),
    )


def _part(requests: Sequence[RequestResult], part: str) -> float:
    values: list[PhaseTimes] = [r.times for r in requests if r.times is not None]
    return float(sum(getattr(times, f"{part}_ms") for times in values))


def latency_section(results: Results, level: float, slo: Slo | None) -> Section:
    heads = [
        "configuration",
        "requests",
        "TTFT p50",
        "p95",
        "p99",
        "TPOT p50",
        "p95",
        "p99",
        "step gap p50",
        "tokens a piece",
    ]
    rows = []
    for arm in results.plan.arms:
        own = [r for r in results.steady(arm=arm.label, level=level) if r.error is None]
        gaps = [gap for r in own for gap in r.gaps_ms]
        pieces = [n for r in own for n in r.chunk_tokens[1:]]
        row = [
            arm.label,
            str(len(own)),
            *_quantiles([r.ttft_ms for r in own if r.ttft_ms is not None]),
            *_quantiles([r.tpot_ms for r in own if r.tpot_ms is not None]),
            ms(float(np.median(gaps))) if gaps else "-",
            f"{np.mean(pieces):.2f}" if pieces else "-",
        ]
        rows.append((*row, *([] if slo is None else [_attained(results, arm.label, level, slo)])))
    asked = [f"{n} {v:g} ms" for n, v in (("TTFT", slo.ttft_ms), ("TPOT", slo.tpot_ms)) if v is not None] if slo else []
    if slo is not None:
        heads.append("met objectives")
    return Section(
        title="Latency and objectives",
        lead=f"Milliseconds at a load of {level:g}."
        + (f" Objectives: {', '.join(asked)}; intervals clustered by block." if asked else " No objectives were set."),
        tables=(Table(tuple(heads), tuple(rows)),),
        notes=(
            f"A p95 needs {P95_REQUESTS} requests of a configuration, a p99 {P99_REQUESTS}; else there is a dash.",
            "A piece streamed at once holds several tokens under speculation: step gaps are between pieces, TPOT is "
            "per token.",
        ),
    )


def _quantiles(values: Sequence[float]) -> tuple[str, str, str]:
    if not values:
        return "-", "-", "-"
    found = [ms(float(np.median(values)))]
    for q, least in ((0.95, P95_REQUESTS), (0.99, P99_REQUESTS)):
        found.append(ms(float(np.quantile(values, q))) if len(values) >= least else "-")
    return found[0], found[1], found[2]


def _attained(results: Results, arm: str, level: float, slo: Slo) -> str:
    blocks = results.complete_blocks(level)
    own = [[r for r in results.steady(arm=arm, level=level) if r.block == block] for block in blocks]
    if not any(own):
        return "-"
    share = attainment([sum(met(r, slo) for r in each) for each in own], [len(each) for each in own])
    return f"{percent(share.share)} [{100 * share.low:.0f}, {100 * share.high:.0f}]"


@dataclass(frozen=True, slots=True)
class Predicted:
    """What a simulation or the cost model said of a cell before it was measured. label: where its times come from."""

    arm: str
    level: float
    speedup: float
    label: str


def decode_rates(results: Results, arm: str, level: float) -> list[float]:
    """[blocks] tokens a second that requests saw after their first piece, all classes together."""
    rates = []
    for block in results.complete_blocks(level):
        own = [
            r for r in results.steady(arm=arm, level=level) if r.block == block and r.error is None and r.chunk_tokens
        ]
        seconds = sum(r.chunk_s[-1] - r.chunk_s[0] for r in own)
        rates.append(sum(sum(r.chunk_tokens[1:]) for r in own) / seconds if seconds > 0.0 else 0.0)
    return rates


def predicted_section(results: Results, predicted: Sequence[Predicted]) -> Section:
    closed = results.plan.load is LoadKind.CLOSED
    rows, errors = [], []
    for each in predicted:
        ours, theirs = (decode_rates(results, arm, each.level) for arm in (each.arm, results.plan.arms[0].label))
        measured = ratio_of(log_ratios(ours, theirs))
        errors.append(abs(each.speedup / measured.ratio - 1.0))
        rows.append(
            (
                each.arm,
                load_name(each.level, closed=closed),
                f"{each.speedup:.2f}x",
                ratio(measured),
                percent(each.speedup / measured.ratio - 1.0),
                each.label,
            )
        )
    mean = sum(errors) / len(errors)
    return Section(
        title="Simulated against measured",
        lead=f"Mode M beside mode R, decode speed against plain: the mean absolute error is {percent(mean)} (goal: 10 %"
        f"{', kept' if mean <= 0.10 else ', missed'}).",
        tables=(Table(("configuration", "load", "simulated", "measured", "error", "times from"), tuple(rows)),),
    )
