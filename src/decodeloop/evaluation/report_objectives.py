"""Objectives class by class: who meets them, and where that surely changed."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from decodeloop.evaluation.economics_run import met, volumes
from decodeloop.evaluation.report_words import Section, Table, percent
from decodeloop.evaluation.results import Results
from decodeloop.evaluation.statistics import Share, attainment, holm
from decodeloop.evaluation.student import t_cdf
from decodeloop.types import RequestClass, Slo

Counts = tuple[list[int], list[int]]  # [blocks] requests that met the objectives, and all


def objectives_section(results: Results, arm: str, level: float, slo: Slo) -> Section:
    """`arm` against the plan's first one; differences tested over blocks, Holm's correction across classes."""
    baseline = results.plan.arms[0].label
    counts = {
        c: (before, after)
        for c in volumes(results)
        if all((before := _counts(results, baseline, level, c, slo))[1])
        and all((after := _counts(results, arm, level, c, slo))[1])
    }
    sure = holm({str(c): p_differs(before, after) for c, (before, after) in counts.items()})
    rows = tuple(
        (str(c), _said(attainment(*before)), _said(attainment(*after)), _change(before, after, sure[str(c)]))
        for c, (before, after) in counts.items()
    )
    return Section(
        title="Objectives by class",
        lead=f"Share of requests at a load of {level:g} that met the objectives; 95 % intervals clustered by block.",
        tables=(Table(("class", baseline, arm, "change"), rows),),
        notes=("A change is called sure by a paired t test over blocks, with Holm's correction across the classes.",),
    )


def p_differs(before: Counts, after: Counts) -> float:
    """Two-sided: the chance of block shares as far apart if nothing had changed. 1 below two blocks."""
    gaps = np.array(after[0]) / np.array(after[1]) - np.array(before[0]) / np.array(before[1])
    if len(gaps) < 2:
        return 1.0
    mean, error = float(gaps.mean()), float(gaps.std(ddof=1)) / math.sqrt(len(gaps))
    if error == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    return 2.0 * (1.0 - t_cdf(abs(mean) / error, len(gaps) - 1))


def _counts(results: Results, arm: str, level: float, request_class: RequestClass, slo: Slo) -> Counts:
    own = results.steady(arm=arm, level=level, request_class=request_class)
    by_block = [[r for r in own if r.block == block] for block in results.complete_blocks(level)]
    return [sum(met(r, slo) for r in each) for each in by_block], [len(each) for each in by_block]


def _said(found: Share) -> str:
    return f"{percent(found.share)} [{100 * found.low:.0f}, {100 * found.high:.0f}]"


def _change(before: Counts, after: Counts, sure: bool) -> str:
    shares: Sequence[float] = [sum(counts[0]) / sum(counts[1]) for counts in (before, after)]
    if not sure:
        return "none shown"
    return "surely more" if shares[1] > shares[0] else "surely fewer"
