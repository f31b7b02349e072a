"""Figures in words, the same in every table; and what a report is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from decodeloop.evaluation.economics import Delta
from decodeloop.evaluation.statistics import Ratio


@dataclass(frozen=True, slots=True)
class Table:
    """rows: of as many cells as there are heads; all but the first column are figures."""

    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """svg: finished markup. caption: what to see in it, in words that stand without it."""

    svg: str
    caption: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Everything but a chart's svg is plain text that nobody has escaped yet. code: shown as it is."""

    title: str
    lead: str
    tables: tuple[Table, ...] = ()
    charts: tuple[Chart, ...] = ()
    notes: tuple[str, ...] = ()
    code: str = ""


class Answer(StrEnum):
    GO = "go"
    NO_GO = "no-go"
    INVALID = "invalid"
    MEASURED = "measured"  # nothing was to be decided


@dataclass(frozen=True, slots=True)
class Check:
    """A criterion that was set in advance. passed: None where it could not be judged."""

    name: str
    passed: bool | None
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """headline: the answer with its interval. advice: what else the figures say, the most important first."""

    answer: Answer
    headline: str
    checks: tuple[Check, ...] = ()
    advice: tuple[str, ...] = field(default=())


def percent(share: float, digits: int = 1) -> str:
    if not math.isfinite(share):
        return "no bound"
    rounded = f"{100 * share:.{digits}f}"
    return f"{'0' if float(rounded) == 0 else rounded} %"


def change(share: float, digits: int = 1) -> str:
    """Signed."""
    if not math.isfinite(share):
        return "no bound"
    return f"{100 * share:+.{digits}f} %"


def delta(found: Delta) -> str:
    """-34.0 % [-40.1, -29.2]; one block has no interval."""
    if found.blocks < 2:
        return f"{change(found.share)} (one block: no interval)"
    high = f"{100 * found.high:+.1f}" if found.high < 100.0 else "no bound"
    return f"{change(found.share)} [{100 * found.low:+.1f}, {high}]"


def ratio(found: Ratio) -> str:
    if found.blocks < 2:
        return f"{found.ratio:.2f}x (one block: no interval)"
    return f"{found.ratio:.2f}x [{found.low:.2f}, {_bound(found.high)}]"


def _bound(high: float) -> str:
    """Two blocks that differ bound nothing that anyone would print."""
    return f"{high:.2f}" if high < 100.0 else "no bound"


def usd(amount: float) -> str:
    """Three digits that count, whatever the size."""
    if math.isnan(amount):
        return "not told"
    if math.isinf(amount):
        return "none met"
    size = abs(amount)
    digits = 2 if size >= 1.0 or size == 0.0 else min(12, 2 - math.floor(math.log10(size)))
    return f"{'-' if amount < 0 else ''}${size:,.{digits}f}"


def ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def optional(value: float | None, form: str) -> str:
    return "not told" if value is None else format(value, form)


def load_name(level: float, *, closed: bool) -> str:
    return f"{level:g} at once" if closed else f"{level:g}/s"


def lossless(known: bool | None) -> str:
    return {True: "yes", False: "NO", None: "not known"}[known]


def length(mal: float | None) -> str:
    """A mean acceptance length."""
    return "not told" if mal is None else f"{mal:.2f}"


def told(share: float | None) -> str:
    return "not told" if share is None else percent(share)
