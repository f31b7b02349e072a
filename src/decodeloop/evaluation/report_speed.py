"""The report's sections on speed: the cliff and the frontier."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.evaluation.charts_plots import Band, Stairs, cliff_plot, frontier_plot
from decodeloop.evaluation.economics_run import volumes
from decodeloop.evaluation.frontier import Point, goodputs, picks, points, stairs
from decodeloop.evaluation.report_words import Chart, Section, Table, load_name, ms, optional, percent, ratio, usd
from decodeloop.evaluation.results import LoadKind, Results
from decodeloop.evaluation.statistics import Logs, Ratio, cliff, log_ratios, ratio_of
from decodeloop.types import RequestClass, Slo

Cells = dict[tuple[float, RequestClass], Logs]


def cells(results: Results, arm: str) -> Cells:
    """(level, class) -> [blocks] log ratio of the arm's decode speed to the baseline's. Classes that a block lacks are
    left out of that level."""
    baseline, found = results.plan.arms[0].label, {}
    for level in results.plan.levels:
        for c in volumes(results):
            run = results.run(level, c)
            if arm not in run.turns or baseline not in run.turns:
                continue
            if all(turn.tokens > 0 and turn.seconds > 0.0 for name in (arm, baseline) for turn in run.all(name)):
                found[level, c] = log_ratios(run.rates(arm), run.rates(baseline))
    return found


def cliff_section(results: Results, arm: str, cells: Cells) -> Section:
    closed = results.plan.load is LoadKind.CLOSED
    ratios = {cell: ratio_of(logs, cells=len(cells)) for cell, logs in cells.items()}
    classes = list(dict.fromkeys(c for _, c in ratios))
    by_class = {c: {level: r for (level, d), r in ratios.items() if d is c} for c in classes}
    bands = [Band(str(c), [_drawn(at, r) for at, r in sorted(own.items())]) for c, own in by_class.items()]
    axis = "requests at once" if closed else "requests offered a second"
    heads = ("class", *(load_name(level, closed=closed) for level in results.plan.levels), "stops paying between")
    rows = tuple(
        (
            str(c),
            *(ratio(own[level]) if level in own else "-" for level in results.plan.levels),
            _ends(own),
        )
        for c, own in by_class.items()
    )
    charts = (
        (Chart(cliff_plot(bands, axis=axis, title="Speed against the load"), _guide(arm, results)),) if bands else ()
    )
    return Section(
        title="The cliff",
        lead=f"Decode speed of {arm} against {results.plan.arms[0].label} as the load grows. The last column is an "
        "interval: the last load that surely gains, the first that surely loses.",
        charts=charts,
        tables=(Table(heads, rows),),
        notes=(f"95 % intervals that hold for all {len(cells)} cells together.",),
    )


def _drawn(at: float, found: Ratio) -> tuple[float, float, float, float]:
    """One block has no interval, and none is drawn."""
    if found.blocks < 2:
        return at, found.ratio, found.ratio, found.ratio
    return at, found.ratio, found.low, found.high


def _guide(arm: str, results: Results) -> str:
    return (
        f"Speed of {arm} over {results.plan.arms[0].label}, with simultaneous 95 % bands; below 1x it loses. "
        "Lines between measured loads only guide the eye."
    )


def _ends(own: dict[float, Ratio]) -> str:
    """Loads in the order of the plan stand in for whole numbers, which `cliff` wants."""
    loads = sorted(own)
    last, first = cliff({i: own[level] for i, level in enumerate(loads)})
    if last is None and first is None:
        return "not shown"
    gains = "nowhere" if last is None else f"{loads[last]:g}"
    return f"[{gains}, {'not reached' if first is None else f'{loads[first]:g}'}]"


def frontier_section(results: Results, *, devices: int, slo: Slo | None, usd_per_hour: float) -> Section:
    closed = results.plan.load is LoadKind.CLOSED
    found = points(results, devices=devices, slo=slo)
    arms = list(dict.fromkeys(p.arm for p in found))
    charts = []
    for total, name in ((False, "output"), (True, "total")):
        series = [_stairs(arm, [p for p in found if p.arm == arm], total) for arm in arms]
        svg = frontier_plot(series, y_axis=f"{name} tokens/s per device", title=f"Frontier, {name} tokens")
        caption = f"{name.capitalize()} tokens a second per device over the speed that one user sees. "
        charts.append(Chart(svg, caption + "Marks were measured; numbers beside them are loads."))
    heads = (
        *("configuration", "load", "tokens/s a user", "output/s", "total/s", "offered/s", "met", "goodput/s"),
        *("dropped", "longest stall, ms", "per million output"),
    )
    rows = tuple(_point_row(p, closed, usd_per_million(usd_per_hour / devices, p)) for p in found)
    notes = [f"{p.arm} would be run at {load_name(p.point.level, closed=closed)}." if p.point else
             f"{p.arm}: no measured load keeps the objectives for 95 % of requests." for p in picks(found)]  # fmt: skip
    goods = goodputs(found)
    tables = [Table(heads, rows)]
    if goods:
        shares = tuple(dict.fromkeys(g.attainment for g in goods))
        cells_of = {
            (g.arm, g.attainment): optional(g.per_s, ".2f") if g.per_s is not None else "no load" for g in goods
        }
        tables.append(
            Table(
                ("goodput/s over offered load, at an attainment of", *(percent(s, 0) for s in shares)),
                tuple((arm, *(cells_of[arm, s] for s in shares)) for arm in arms),
            )
        )
    return Section(
        title="The frontier",
        lead="One user's speed against a device's work: a staircase through what was measured. Points up and to the "
        "right are better. tokens/s a user is 1 / median TPOT.",
        charts=tuple(charts),
        tables=tuple(tables),
        notes=tuple(notes),
    )


def usd_per_million(usd_per_device_hour: float, point: Point) -> float:
    rate = point.output_per_device
    return usd_per_device_hour / 3600.0 / rate * 1e6 if rate else float("inf")


def _stairs(arm: str, own: Sequence[Point], total: bool) -> Stairs:
    marks = [(p.user_tokens_per_s, p.total_per_device if total else p.output_per_device, f"{p.level:g}") for p in own]
    return Stairs(arm, marks, stairs(own, total=total))


def _point_row(p: Point, closed: bool, cost: float) -> tuple[str, ...]:
    return (
        p.arm,
        load_name(p.level, closed=closed),
        f"{p.user_tokens_per_s:.1f}",
        f"{p.output_per_device:.1f}",
        f"{p.total_per_device:.1f}",
        f"{p.offered_per_s:.2f}",
        "-" if p.met_share is None else percent(p.met_share.share, 0),
        "-" if p.goodput_per_s is None else f"{p.goodput_per_s:.2f}",
        percent(p.dropped),
        ms(p.stall_ms),
        usd(cost),
    )
