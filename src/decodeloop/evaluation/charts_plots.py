"""The report's charts. Each takes plain numbers and gives one SVG drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.evaluation.charts import (
    COLOURS,
    LABEL_CHARACTERS,
    WIDTH,
    Scale,
    axis_x,
    axis_y,
    bar,
    drawing,
    legend,
    line,
    mark,
    nice_ticks,
    path,
    text,
    width_of,
)

ROW = 26.0
RIGHT = WIDTH - 24.0


@dataclass(frozen=True, slots=True)
class Interval:
    """A row of a forest plot. said: its figures, in words, at the right."""

    label: str
    value: float
    low: float
    high: float
    said: str


def forest(rows: Sequence[Interval], *, reference: float, axis: str, title: str, percent: bool = False) -> str:
    """Estimates with their intervals against a line of no effect. Intervals that say nothing run off the edge."""
    reach = max(0.2, 2.5 * max(abs(r.value - reference) for r in rows))
    left, right = 20.0 + width_of([r.label for r in rows]), RIGHT - 12.0 - width_of([r.said for r in rows])
    ends = [min(max(v, reference - reach), reference + reach) for r in rows for v in (r.low, r.high, r.value)]
    low, high = _padded(min(*ends, reference), max(*ends, reference))
    top, bottom = 12.0, 12.0 + ROW * len(rows)
    x = Scale(low, high, left, right)
    shown = [f"{tick:+.0%}" if tick else "0 %" for tick in x.ticks()] if percent else None
    parts = [axis_x(x, bottom, top, label=axis, shown=shown), line(x(reference), top, x(reference), bottom, "axis")]
    for i, row in enumerate(rows):
        y = top + ROW * (i + 0.5)
        a, b = (x.clipped(v) for v in (row.low, row.high))
        parts += [
            text(left - 12, y + 4, row.label, anchor="end", most=LABEL_CHARACTERS),
            line(a, y, b, y, "whisker s0"),
            line(a, y - 4, a, y + 4, "whisker s0") if row.low >= low else "",
            line(b, y - 4, b, y + 4, "whisker s0") if row.high <= high else "",
            mark(x.clipped(row.value), y, 0, row.said),
            text(right + 12, y + 4, row.said),
        ]
    return drawing(parts, bottom + 44, title=title)


@dataclass(frozen=True, slots=True)
class Band:
    """A series over loads: (load, ratio, low, high), ascending."""

    label: str
    points: Sequence[tuple[float, float, float, float]]


def cliff_plot(series: Sequence[Band], *, axis: str, title: str) -> str:
    """Speed against plain over the load, with bands; below 1 speculation loses. Points are joined as a guide only.

    Bands that say nothing run off the edge.
    """
    key, height = legend([s.label for s in series], 20.0)
    top, bottom = 24.0 + height, 24.0 + height + 220.0
    loads = sorted({p[0] for s in series for p in s.points})
    most = 1.6 * max(1.0, *(p[1] for s in series for p in s.points))
    ends = [min(max(v, 0.0), most) for s in series for p in s.points for v in p[1:]] + [1.0]
    y = Scale(*_padded(min(ends), max(ends)), bottom, top)
    low, high = (loads[0], loads[-1]) if loads[0] < loads[-1] else (loads[0] / 2, loads[0] * 2)
    x = Scale(low, high, 64.0, RIGHT - 12.0, log2=True)
    parts = [
        key,
        axis_y(y, 52.0, RIGHT, shown=[f"{t:g}x" for t in y.ticks()]),
        axis_x(x, bottom, top, label=axis),
        line(52.0, y(1.0), RIGHT, y(1.0), "axis", dashed=True),
    ]
    for i, s in enumerate(series):
        c = i % len(COLOURS)
        upper = [(x(p[0]), y.clipped(p[3])) for p in s.points]
        lower = [(x(p[0]), y.clipped(p[2])) for p in s.points]
        parts.append(path([*upper, *lower[::-1]], f"band f{c}", closed=True) if len(upper) > 1 else "")
        parts += [line(a[0], a[1], b[0], b[1], f"whisker s{c}") for a, b in zip(upper, lower, strict=True)]
        parts.append(path([(x(p[0]), y(p[1])) for p in s.points], f"line s{c}"))
        parts += [mark(x(p[0]), y(p[1]), i, f"{s.label} at {p[0]:g}: {p[1]:.2f}x") for p in s.points]
    return drawing(parts, bottom + 44, title=title)


@dataclass(frozen=True, slots=True)
class Stairs:
    """An arm on the frontier plot: its measured (x, y, label) points and the corners of its staircase."""

    label: str
    points: Sequence[tuple[float, float, str]]
    corners: Sequence[tuple[float, float]]


def frontier_plot(series: Sequence[Stairs], *, y_axis: str, title: str) -> str:
    key, height = legend([s.label for s in series], 20.0)
    top, bottom = 44.0 + height, 44.0 + height + 240.0
    x = Scale(0.0, 1.08 * max(p[0] for s in series for p in s.points), 68.0, RIGHT)
    y = Scale(0.0, 1.1 * max(p[1] for s in series for p in s.points), bottom, top)
    parts = [
        key,
        text(8.0, top - 14.0, y_axis, kind="soft"),
        axis_y(y, 68.0, RIGHT),
        axis_x(x, bottom, top, label="tokens/s that one user sees (1 / median TPOT)"),
    ]
    for i, s in enumerate(series):
        parts.append(path([(x(a), y(b)) for a, b in s.corners], f"line s{i % len(COLOURS)}"))
    taken: list[tuple[float, float]] = []
    for i, s in enumerate(series):
        for a, b, said in s.points:
            parts.append(mark(x(a), y(b), i, f"{s.label}, {said}: {a:.1f} and {b:.1f} tokens/s"))
            parts += _beside(x(a), y(b), said, taken)
    return drawing(parts, bottom + 44, title=title)


def position_bars(series: Sequence[tuple[str, Sequence[float]]], *, title: str) -> str:
    """Shares from 0 to 1 by draft position, one group a position, one bar a series."""
    key, height = legend([label for label, _ in series], 20.0)
    top, bottom = 24.0 + height, 24.0 + height + 160.0
    count = max(len(values) for _, values in series)
    y = Scale(0.0, 1.0, bottom, top)
    step = (RIGHT - 60.0) / max(count, 1)
    wide = min(34.0, 0.8 * step / len(series))
    parts = [
        key,
        axis_y(y, 52.0, RIGHT, shown=[f"{t:.0%}" for t in y.ticks()]),
        line(52.0, bottom, RIGHT, bottom, "axis"),
    ]
    for k in range(count):
        middle = 56.0 + step * (k + 0.5)
        parts.append(text(middle, bottom + 16, str(k + 1), anchor="middle", kind="soft"))
        for i, (label, values) in enumerate(series):
            if k < len(values):
                at = middle + wide * (i - 0.5 * len(series))
                said = f"{label}, position {k + 1}: {values[k]:.1%}"
                parts.append(
                    bar((at + 1, y(values[k])), (wide - 2, bottom - y(values[k])), f"f{i % len(COLOURS)}", said)
                )
    parts.append(text(0.5 * (52.0 + RIGHT), bottom + 34, "position in the draft", anchor="middle", kind="soft"))
    return drawing(parts, bottom + 44, title=title)


def stacked(rows: Sequence[tuple[str, Sequence[float]]], parts_of: Sequence[str], *, axis: str, title: str) -> str:
    """One horizontal bar a row, made of parts in order, its sum at the end."""
    key, height = legend(parts_of, 20.0)
    left, right = 20.0 + width_of([label for label, _ in rows]), RIGHT - 56.0
    top, bottom = 20.0 + height, 20.0 + height + ROW * len(rows)
    x = Scale(0.0, max([1e-9, *(sum(values) for _, values in rows)]), left, right)
    drawn = [key, axis_x(x, bottom, top, label=axis)]
    for i, (label, values) in enumerate(rows):
        y, at = top + ROW * i + 4, 0.0
        drawn.append(text(left - 12, y + 13, label, anchor="end", most=LABEL_CHARACTERS))
        for j, value in enumerate(values):
            drawn.append(
                bar((x(at), y), (x(at + value) - x(at), ROW - 8), f"f{j % len(COLOURS)}", f"{parts_of[j]}: {value:.2f}")
            )
            at += value
        drawn.append(text(x(at) + 6, y + 13, f"{at:.1f}"))
    return drawing(drawn, bottom + 44, title=title)


@dataclass(frozen=True, slots=True)
class TornadoRow:
    """said_low, said_high: what the assumption is then."""

    label: str
    at_low: float
    at_high: float
    said_low: str
    said_high: str


def tornado(rows: Sequence[TornadoRow], *, base: float, axis: str, title: str, percent: bool) -> str:
    """One assumption a row, moved both ways around the figure as measured."""
    key, height = legend(["assumption at its low end", "at its high end"], 20.0)
    left = 20.0 + width_of([r.label for r in rows])
    top, bottom = 20.0 + height, 20.0 + height + ROW * len(rows)
    ends = [v for r in rows for v in (r.at_low, r.at_high)] + [base]
    x = Scale(*_padded(min(ends), max(ends)), left, RIGHT - 20.0)
    shown = [f"{t:+.0%}" if t else "0 %" for t in x.ticks()] if percent else None
    parts = [key, axis_x(x, bottom, top, label=axis, shown=shown)]
    for i, row in enumerate(rows):
        y = top + ROW * i + 5
        parts.append(text(left - 12, y + 12, row.label, anchor="end", most=LABEL_CHARACTERS))
        for series, (value, said) in enumerate(((row.at_low, row.said_low), (row.at_high, row.said_high))):
            a, b = sorted((x(base), x(value)))
            parts.append(bar((a, y + 8 * series), (b - a, 8.0), f"f{series}", f"{row.label}, {said}: {value:.4g}"))
    parts.append(line(x(base), top, x(base), bottom, "mark"))
    return drawing(parts, bottom + 44, title=title)


def _padded(low: float, high: float) -> tuple[float, float]:
    """A little room at both ends, and ends that are ticks where that costs little."""
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    ticks = nice_ticks(low - room, high + room)
    return min(low - room, ticks[0]), max(high + room, ticks[-1])


def _beside(x: float, y: float, said: str, taken: list[tuple[float, float]]) -> list[str]:
    """A point's label where no other label is, or none (hovering tells it)."""
    for dx, dy, anchor in ((8, -6, "start"), (8, 14, "start"), (-8, -6, "end"), (-8, 14, "end")):
        at = x + dx + (0.0 if anchor == "start" else -7.0 * len(said)), y + dy
        if all(abs(at[0] - a) > 7.0 * max(len(said), 3) or abs(at[1] - b) > 13.0 for a, b in taken):
            taken.append(at)
            return [text(x + dx, y + dy, said, anchor=anchor, kind="soft")]
    return []
