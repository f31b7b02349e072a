"""What charts are drawn with: scales, axes, legends, text that is escaped and fits. SVG as strings, no dependencies.

Colours are CSS classes, so that one drawing serves light, dark and paper; marks differ in shape as well as colour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 720.0
CHARACTER = 6.7  # px of an average character at the charts' 12 px
LABEL_CHARACTERS = 34
COLOURS = (
    ("#1f5fbf", "#74b1ff"),
    ("#b35900", "#f2a65a"),
    ("#1a7f37", "#6bc46d"),
    ("#7c3fd1", "#c8a1ff"),
    ("#b3262f", "#ff8f87"),
    ("#57606a", "#a8b1bc"),
)


def style() -> str:
    """The CSS that charts need, once a page (or inside a drawing that stands alone)."""
    light = [_theme(i, light) for i, (light, _) in enumerate(COLOURS)]
    dark = [_theme(i, dark) for i, (_, dark) in enumerate(COLOURS)]
    ink = ".chart text{{fill:{0}}} .chart .soft{{fill:{1}}} .chart .axis{{stroke:{1}}} .chart .grid{{stroke:{2}}}"
    ink += " .chart .mark{{stroke:{0}}} .chart .halo{{stroke:{3}}}"
    return (
        ".chart{font:12px system-ui,-apple-system,'Segoe UI',sans-serif;max-width:100%;height:auto;display:block}"
        " .chart .line{fill:none;stroke-width:2} .chart .band{opacity:.11;stroke:none} .chart .grid{stroke-width:.6}"
        " .chart .axis{stroke-width:1} .chart .whisker{stroke-width:2} .chart .halo{fill:none}"
        " .chart .strong{font-weight:600}\n"
        + "\n".join([ink.format("#1d2329", "#59636e", "#d8dee4", "#ffffff"), *light])
        + "\n@media screen and (prefers-color-scheme:dark){\n"
        + "\n".join([ink.format("#e6edf3", "#9aa5b1", "#363e48", "#12161b"), *dark])
        + "\n}"
    )


def _theme(i: int, colour: str) -> str:
    return f".chart .f{i}{{fill:{colour}}} .chart .s{i}{{stroke:{colour}}}"


@dataclass(frozen=True, slots=True)
class Scale:
    """Data to pixels. log2: equal steps for doublings; low and high are above 0 then."""

    low: float
    high: float
    start: float
    end: float
    log2: bool = False

    def __call__(self, value: float) -> float:
        share = (self._at(value) - self._at(self.low)) / ((self._at(self.high) - self._at(self.low)) or 1.0)
        return self.start + share * (self.end - self.start)

    def clipped(self, value: float) -> float:
        return self(min(max(value, self.low), self.high))

    def ticks(self, about: int = 5) -> list[float]:
        if self.log2:
            first, last = math.ceil(math.log2(self.low) - 1e-9), math.floor(math.log2(self.high) + 1e-9)
            every = max(1, math.ceil((last - first + 1) / (about + 3)))
            return [2.0**k for k in range(first, last + 1, every)]
        return nice_ticks(self.low, self.high, about)

    def _at(self, value: float) -> float:
        return math.log2(value) if self.log2 else value


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Round values within [low, high], about so many."""
    if not high - low > 1e-12 * max(abs(low), abs(high), 1e-12):
        return [low]
    rough = (high - low) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(k * step, 12) for k in range(first, last + 1)]


def number(value: float) -> str:
    """Short, for an axis."""
    if value == 0.0:
        return "0"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:g}M"
    if size >= 1e4:
        return f"{value / 1e3:g}k"
    return f"{value:.6g}"


def shortened(text: str, most: int = LABEL_CHARACTERS) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def width_of(labels: Sequence[str]) -> float:
    return CHARACTER * max((len(shortened(label)) for label in labels), default=0)


def text(x: float, y: float, said: str, *, anchor: str = "start", kind: str = "", most: int = 200) -> str:
    """kind: CSS classes. What was shortened is told in full on hovering."""
    shown, cut = escape(shortened(said, most)), len(said) > most
    whole = f"<title>{escape(said)}</title>" if cut else ""
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{whole}{shown}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str, *, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"{dash}/>'


def bar(at: tuple[float, float], size: tuple[float, float], kind: str, said: str = "") -> str:
    """at: the upper left corner. size: width and height."""
    title = f"<title>{escape(said)}</title>" if said else ""
    box = f'x="{at[0]:.1f}" y="{at[1]:.1f}" width="{max(size[0], 0.0):.1f}" height="{size[1]:.1f}"'
    return f'<rect {box} class="{kind}">{title}</rect>'


def mark(x: float, y: float, series: int, said: str = "") -> str:
    """A circle, square, triangle or diamond, by the series."""
    title = f"<title>{escape(said)}</title>" if said else ""
    kind = f'class="f{series % len(COLOURS)}"'
    shape = series % 4
    if shape == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {kind}>{title}</circle>'
    if shape == 1:
        return f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" {kind}>{title}</rect>'
    corners = ((0, -5.5), (5.5, 4.5), (-5.5, 4.5)) if shape == 2 else ((0, -6), (6, 0), (0, 6), (-6, 0))
    placed = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{placed}" {kind}>{title}</polygon>'


def path(points: Sequence[tuple[float, float]], kind: str, *, closed: bool = False) -> str:
    steps = " ".join(f"{'M' if i == 0 else 'L'}{x:.1f} {y:.1f}" for i, (x, y) in enumerate(points))
    return f'<path d="{steps}{" Z" if closed else ""}" class="{kind}"/>'


def legend(labels: Sequence[str], y: float, *, left: float = 8.0) -> tuple[str, float]:
    """(drawing, height): marks with their series' names, broken into lines that fit."""
    parts, x, row = [], left, 0
    for i, label in enumerate(labels):
        width = 34.0 + CHARACTER * len(shortened(label))
        if x > left and x + width > WIDTH - 8.0:
            x, row = left, row + 1
        at = y + 18.0 * row
        parts += [mark(x + 6, at - 4, i), text(x + 16, at, label, most=LABEL_CHARACTERS)]
        x += width
    return "".join(parts), 18.0 * (row + 1)


def axis_x(scale: Scale, y: float, top: float, *, label: str, shown: Sequence[str] | None = None) -> str:
    """Ticks with grid lines up to `top`. shown: what the ticks are called, if not by their numbers."""
    ticks = scale.ticks()
    names = shown or [number(tick) for tick in ticks]
    parts = [line(scale.start, y, scale.end, y, "axis")]
    for tick, name in zip(ticks, names, strict=True):
        x = scale(tick)
        parts += [line(x, top, x, y, "grid"), text(x, y + 16, name, anchor="middle", kind="soft")]
    parts.append(text(0.5 * (scale.start + scale.end), y + 34, label, anchor="middle", kind="soft"))
    return "".join(parts)


def axis_y(scale: Scale, x: float, right: float, *, shown: Sequence[str] | None = None) -> str:
    ticks = scale.ticks()
    names = shown or [number(tick) for tick in ticks]
    parts = []
    for tick, name in zip(ticks, names, strict=True):
        y = scale(tick)
        parts += [line(x, y, right, y, "grid"), text(x - 7, y + 4, name, anchor="end", kind="soft")]
    return "".join(parts)


def drawing(parts: Sequence[str], height: float, *, title: str, alone: bool = False) -> str:
    """alone: with its own style, to be a file; else the page has it."""
    own = f"<style>{style()}</style>" if alone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {WIDTH:.0f} {height:.0f}" role="img" '
        f'width="{WIDTH:.0f}" height="{height:.0f}" aria-label="{escape(title)}">{own}{"".join(parts)}</svg>'
    )
