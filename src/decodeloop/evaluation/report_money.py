"""The report's sections on money: the bill by class, what else could be done, what it all hangs on."""

from __future__ import annotations

import math
from collections.abc import Sequence

from decodeloop.evaluation.charts_plots import Interval, TornadoRow, forest, tornado
from decodeloop.evaluation.economics import Delta, Margin, Money
from decodeloop.evaluation.economics_run import Bill, bill
from decodeloop.evaluation.economics_sensitivity import dollar_swings, saving_swings, usd_saved_per_million
from decodeloop.evaluation.economics_tasks import TaskCosts
from decodeloop.evaluation.report_words import (
    Chart,
    Section,
    Table,
    change,
    delta,
    length,
    load_name,
    lossless,
    percent,
    usd,
)
from decodeloop.evaluation.results import LoadKind, Results
from decodeloop.types import Slo


def bottom_line(found: Bill, money: Money, power: str) -> Section:
    """What one pays: capacity and marginal, side by side."""
    saved = usd_saved_per_million(found, money)
    heads = ("", found.baseline, found.arm, "change")
    off, on = found.off, found.on

    def row(name: str, a: float, b: float) -> tuple[str, str, str, str]:
        known = math.isfinite(a) and math.isfinite(b) and a > 0.0
        return name, usd(a), usd(b), change(b / a - 1.0) if known else "-"

    rows = (
        row("per million output tokens (device busy)", off.usd_per_million_output, on.usd_per_million_output),
        row("per million tokens, prompts counted", off.usd_per_million_total, on.usd_per_million_total),
        row("per request, devices kept for the load", off.usd_per_request, on.usd_per_request),
    )
    fleet = "Marginal: the device time that requests took themselves. "
    return Section(
        title="The bill",
        lead=f"Device time of the measured mix: {delta(found.delta)} with {found.arm} "
        f"({'saved' if saved >= 0 else 'spent'}: {usd(abs(saved))} per million requests, at "
        f"{usd(money.usd_per_hour)} an hour).",
        tables=(Table(heads, rows),),
        notes=(
            f"{fleet}At a fixed load this becomes money only when devices are given back or take on more work.",
            f"Price: {money.price.said}; {money.devices} device{'s' if money.devices > 1 else ''}.",
            f"Power: {power}",
            f"Device time: {found.source}.",
        ),
    )


def by_class(found: Bill) -> Section:
    heads = (
        "class",
        "share of volume",
        "requests",
        "cost each, before",
        "cost each, after",
        "change",
        "MAL",
        "to watch",
    )
    rows = []
    for each in found.classes:
        accepted = each.acceptance
        rows.append(
            (
                str(each.request_class),
                percent(each.volume_share),
                f"{each.off.requests} / {each.on.requests}",
                usd(each.off.usd_per_request),
                usd(each.on.usd_per_request),
                delta(each.delta),
                "-" if accepted is None else length(accepted.mal_step_weighted),
                each.tail or "",
            )
        )
    intervals = [_interval("all, weighted by volume", found.delta)]
    intervals += [_interval(f"{c.request_class} ({percent(c.volume_share, 0)})", c.delta) for c in found.classes]
    chart = forest(intervals, reference=0.0, axis="change of cost a request", title="Cost by class", percent=True)
    tails = ", ".join(str(t.request_class) for t in found.tails)
    notes = [f"To watch: {tails}." if tails else "No class loses and none has low acceptance."]
    if found.unmeasured:
        notes.append(f"Has volume, was not measured, is in no total: {', '.join(map(str, found.unmeasured))}.")
    return Section(
        title="Class by class",
        lead="The total is a weighted sum: a class that gains much and comes often can hide one that loses. Every "
        "class is listed, however small. 95 % intervals over blocks.",
        charts=(Chart(chart, "Change of cost a request, each class and all; left of the line is saved."),),
        tables=(Table(heads, tuple(rows)),),
        notes=tuple(notes),
    )


def _interval(label: str, found: Delta) -> Interval:
    """One block has no interval, and none is drawn."""
    low, high = (found.low, found.high) if found.blocks >= 2 else (found.share, found.share)
    return Interval(label, found.share, low, high, delta(found))


def alternatives(results: Results, level: float, money: Money, slo: Slo | None) -> Section:
    """Every arm against the same baseline, the larger batch among them."""
    closed = results.plan.load is LoadKind.CLOSED
    baseline = results.plan.arms[0]
    heads = ("configuration", "output unchanged", "load", "device time", "throughput", "per million output tokens")
    rows = []
    for arm in results.plan.arms[1:]:
        found = bill(results, arm.label, level, money, slo)
        cost = usd(found.on.usd_per_million_output)
        load = load_name(level, closed=closed)
        rows.append((arm.label, lossless(arm.lossless), load, delta(found.delta), delta(found.throughput), cost))
    for larger in [each for each in results.plan.levels if each > level]:
        batch = larger_batch(results, level, larger, money)
        if batch is not None:
            rate, per_million = batch
            name = f"{baseline.label}, larger batch"
            rows.append((name, "yes", load_name(larger, closed=closed), "-", change(rate), usd(per_million)))
    return Section(
        title="Every way that was tried",
        lead=f"All against {baseline.label} at {load_name(level, closed=closed)}. A configuration whose output changes "
        "needs a check of quality before its saving counts.",
        tables=(Table(heads, tuple(rows)),),
        notes=("A larger batch makes each user slower: see the frontier.",),
    )


def larger_batch(results: Results, level: float, larger: float, money: Money) -> tuple[float, float] | None:
    """(change of the baseline's output rate, USD per million output tokens) when its load is raised."""
    baseline = results.plan.arms[0].label
    rates = []
    for each in (level, larger):
        blocks = results.complete_blocks(each)
        turns = [t for t in results.turns if t.arm == baseline and t.level == each and t.block in blocks]
        seconds = sum(t.seconds for t in turns)
        if seconds <= 0.0:
            return None
        rates.append(sum(t.tokens for t in turns) / seconds)
    if not all(rates):
        return None
    return rates[1] / rates[0] - 1.0, money.usd_per_hour / 3600.0 / rates[1] * 1e6


def sensitivity(found: Bill, money: Money) -> Section:
    swings, dollars = saving_swings(found), dollar_swings(found, money)
    rows = [TornadoRow(s.name, s.at_low, s.at_high, s.low, s.high) for s in swings[:10]]
    charts: tuple[Chart, ...] = ()
    if rows:
        svg = tornado(
            rows, base=found.delta.share, axis="change of device time, all classes", title="Sensitivity", percent=True
        )
        charts = (Chart(svg, "The volume-weighted change when one assumption moves and the others stay."),)
    heads = ("assumption", "at its low end", "at its high end", "saved per million requests")
    table = tuple((s.name, s.low, s.high, f"{usd(s.at_low)} to {usd(s.at_high)}") for s in dollars)
    return Section(
        title="What the saving hangs on",
        lead="Price and power scale both sides: they move the dollars, not the share. The mix of classes moves the "
        "share.",
        charts=charts,
        tables=(Table(heads, table),),
    )


def tasks(costs: Sequence[tuple[str, TaskCosts]]) -> Section:
    heads = (
        "configuration",
        "tasks",
        "requests a task",
        "cost a task, mean",
        "p50",
        "p90",
        "seconds of requests a task",
    )
    rows = tuple(
        (
            arm,
            str(c.tasks),
            f"{c.requests_mean:.1f}",
            usd(c.usd_mean),
            usd(c.usd_p50),
            usd(c.usd_p90),
            f"{c.seconds_mean:.2f}",
        )
        for arm, c in costs
    )
    unnamed = sum(c.unnamed for _, c in costs)
    notes = (f"{unnamed} requests name no session and are in no task.",) if unnamed else ()
    return Section(
        title="Cost per task",
        lead="All the requests of a session together: a cheaper request that needs one more round is no saving.",
        tables=(Table(heads, rows),),
        notes=notes,
    )


def margins(found: Bill, prices: dict[str, float], other_share: float) -> Section:
    """prices: class -> what a request of it brings, in USD; "default" for the others."""
    rows = []
    for each in found.classes:
        price = prices.get(str(each.request_class), prices.get("default"))
        if price is None:
            continue
        before, after = (
            Margin(price=price, cost=cost.usd_per_request, other_share=other_share) for cost in (each.off, each.on)
        )
        rows.append(
            (
                str(each.request_class),
                usd(price),
                f"{usd(before.usd)} ({percent(before.share)})",
                f"{usd(after.usd)} ({percent(after.share)})",
            )
        )
    return Section(
        title="Contribution margin",
        lead=f"Price less device cost less {percent(other_share)} of the price for everything else, per request.",
        tables=(Table(("class", "price", "before", "after"), tuple(rows)),),
    )
