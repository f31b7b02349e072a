"""Charts: well-formed, escaped, nothing outside the drawing; what they show is where it belongs."""

import math
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.evaluation.charts import CHARACTER, Scale, nice_ticks, number, style
from decodeloop.evaluation.charts_plots import (
    Band,
    Interval,
    Stairs,
    TornadoRow,
    cliff_plot,
    forest,
    frontier_plot,
    position_bars,
    stacked,
    tornado,
)

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '<script>alert("1")</script> & a label that goes on and on'
names = st.sampled_from(["a", "code_edit", HOSTILE])
shares = st.floats(-0.9, 5.0)


def drawings(name, a, b, c):
    low, mid, high = sorted((a, b, c))
    return {
        "forest": forest(
            [Interval(name, mid, low, high, f"{mid:.1%}"), Interval("x", 0.0, -math.inf, math.inf, "-")],
            reference=0.0,
            axis="change",
            title=name,
            percent=True,
        ),
        "cliff": cliff_plot(
            [Band(name, [(1.0, mid, low, high), (8.0, low, low, low)]), Band("b", [(1.0, 1.0, 0.0, math.inf)])],
            axis="at once",
            title=name,
        ),
        "frontier": frontier_plot(
            [
                Stairs(
                    name, [(1.0 + abs(mid), 2.0 + abs(a), "1"), (3.0, 1.0, "16")], [(0.0, 2.0), (3.0, 2.0), (3.0, 0.0)]
                )
            ],
            y_axis="work",
            title=name,
        ),
        "bars": position_bars([(name, [0.5, 0.25]), ("b", [1.0])], title=name),
        "stacked": stacked([(name, [abs(a), abs(b)]), ("b", [0.0, 0.0])], ["draft", "verify"], axis="ms", title=name),
        "tornado": tornado(
            [TornadoRow(name, low, high, "half", "twice")], base=mid, axis="change", title=name, percent=True
        ),
    }


@given(names, shares, shares, shares)
def test_nothing_is_drawn_outside_and_everything_is_escaped(name, a, b, c):
    for kind, svg in drawings(name, a, b, c).items():
        root = ElementTree.fromstring(svg)
        assert not root.findall(f".//{SVG}script")
        assert "nan" not in svg
        assert "inf" not in svg
        width, height = (float(v) for v in root.get("viewBox").split()[2:])
        for text in root.iter(f"{SVG}text"):
            own = "".join(text.itertext())
            shown = own[len(text.find(f"{SVG}title").text) :] if text.find(f"{SVG}title") is not None else own
            reach = CHARACTER * len(shown)
            x = float(text.get("x")) - {"start": 0.0, "middle": reach / 2, "end": reach}[text.get("text-anchor")]
            assert x > -8.0, (kind, own)
            assert x + reach < width + 20.0, (kind, own)
            assert 0.0 < float(text.get("y")) <= height, (kind, own)
        for rect in root.iter(f"{SVG}rect"):
            assert float(rect.get("x")) + float(rect.get("width")) <= width, kind
            assert float(rect.get("y")) >= 0.0, kind


def test_a_better_value_is_further_right():
    svg = forest([Interval("a", 1.0, 0.5, 1.5, ""), Interval("b", 2.0, 1.5, 2.5, "")], reference=0.0, axis="", title="")
    a, b = (float(x) for x in re.findall(r'circle cx="([\d.]+)"', svg))
    assert a < b


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6))
def test_ticks_are_round_few_and_inside(low, span):
    ticks = nice_ticks(low, low + span)
    assert 2 <= len(ticks) <= 12
    assert all(low - 1e-6 * span - 1e-6 <= tick <= low + span + 1e-6 * span + 1e-6 for tick in ticks)


def test_doublings_are_equal_steps():
    x = Scale(1.0, 64.0, 0.0, 60.0, log2=True)
    assert x.ticks() == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    assert x(8.0) == pytest.approx(30.0)


def test_numbers_on_axes_are_short():
    assert [number(v) for v in (0.0, 0.25, 1200.0, 20000.0, 3e6)] == ["0", "0.25", "1200", "20k", "3M"]


def contrast(one, other):
    """WCAG 2."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    a, b = sorted((luminance(one), luminance(other)))
    return (b + 0.05) / (a + 0.05)


def test_every_colour_stands_out_on_its_background():
    light, dark = style().split("@media screen")
    for theme, paper in ((light, "#ffffff"), (dark, "#12161b")):
        for colour in re.findall(r"\.f\d\{fill:(#\w+)\}", theme):
            assert contrast(colour, paper) >= 3.0, colour
        for colour in re.findall(r"(?:text|\.soft)\{fill:(#\w+)\}", theme):
            assert contrast(colour, paper) >= 4.5, colour
