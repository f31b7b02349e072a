"""The report: one offline HTML file and its Markdown twin, from a measured run."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from decodeloop.evaluation.charts import style
from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.economics_run import Bill, bill
from decodeloop.evaluation.report_money import alternatives, bottom_line, by_class, sensitivity
from decodeloop.evaluation.report_objectives import objectives_section
from decodeloop.evaluation.report_speed import cells, cliff_section, frontier_section
from decodeloop.evaluation.report_tokens import (
    Predicted,
    acceptance_section,
    latency_section,
    predicted_section,
    step_time_section,
)
from decodeloop.evaluation.report_validity import Validity, validity, without_loops
from decodeloop.evaluation.report_words import Answer, Section, Table, Verdict, change, delta, load_name, lossless
from decodeloop.evaluation.results import LoadKind, Mode, Results
from decodeloop.types import Slo

MARKDOWN_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#~])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What a report is about. arm, level: the configuration that is judged, at the load it would serve.

    power: what could be read of it, in words. card: a result card of this run. predicted: what a simulation said.
    extra: further sections (tasks, margins, the gap to the bound), put before the method.
    """

    results: Results
    arm: str
    level: float
    money: Money
    slo: Slo | None = None
    verdict: Verdict | None = None
    power: str = "not measured"
    card: Mapping[str, Any] | None = None
    predicted: Sequence[Predicted] = ()
    extra: tuple[Section, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All texts as they are: rendering escapes them."""

    title: str
    subtitle: str
    verdict: Verdict
    validity: Validity
    key_figures: tuple[tuple[str, str], ...]
    sections: tuple[Section, ...] = field(default=())


def build(asked: Asked) -> Report:
    """Raises ValueError where the run has no finished block at the level asked for."""
    results, plan = asked.results, asked.results.plan
    found = bill(results, asked.arm, asked.level, asked.money, asked.slo)
    sections = [
        bottom_line(found, asked.money, asked.power),
        by_class(found),
        alternatives(results, asked.level, asked.money, asked.slo),
        cliff_section(results, asked.arm, cells(results, asked.arm)),
        frontier_section(results, devices=asked.money.devices, slo=asked.slo, usd_per_hour=asked.money.usd_per_hour),
        acceptance_section(results, asked.arm, asked.level),
        step_time_section(results),
        latency_section(results, asked.level, asked.slo),
        None if asked.slo is None else objectives_section(results, asked.arm, asked.level, asked.slo),
        predicted_section(results, asked.predicted) if asked.predicted else None,
        sensitivity(found, asked.money),
        *asked.extra,
        _method(asked, found),
        _card(asked.card),
    ]
    closed = plan.load is LoadKind.CLOSED
    return Report(
        title=f"{asked.arm} against {found.baseline}",
        subtitle=f"{plan.workload.name}, {plan.workload.requests} requests, {load_name(asked.level, closed=closed)}; "
        f"{plan.created_at}",
        verdict=asked.verdict or Verdict(answer=Answer.MEASURED, headline=headline(found, plan.mode)),
        validity=validity(results),
        key_figures=_key_figures(found),
        sections=tuple(section for section in sections if section is not None),
    )


def headline(found: Bill, mode: Mode) -> str:
    """Only a real run may say that something saves."""
    if mode is not Mode.REAL:
        known = f"{found.arm}, {mode.name.lower()}: device time {delta(found.delta)}, weighted by volume."
        return f"{known} No saving is claimed."
    verb = "saves" if found.delta.saves else "costs" if found.delta.costs else "is not shown to change"
    return f"{found.arm} {verb} device time: {delta(found.delta)}, weighted by volume."


def to_html(report: Report) -> str:
    return _environment().get_template("report.html.j2").render(report=report, style=Markup(style()))


def to_markdown(report: Report) -> str:
    return _environment().get_template("report.md.j2").render(report=report)


def markdown(text: str) -> str:
    """Text that Markdown shows as it is: nothing in it is markup, and it stays on its line."""
    return MARKDOWN_SPECIAL.sub(r"\\\1", " ".join(text.split())).replace("&", "&amp;")


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("decodeloop.evaluation", "templates"),
        autoescape=lambda name: name is not None and name.endswith(".html.j2"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markdown": markdown, "drawn": Markup}
    return environment


def _key_figures(found: Bill) -> tuple[tuple[str, str], ...]:
    loser = max(found.classes, key=lambda each: each.delta.share)
    return (
        ("device time, weighted by volume", delta(found.delta)),
        ("output tokens a second", delta(found.throughput)),
        (f"worst class: {loser.request_class}", change(loser.delta.share)),
    )


def _method(asked: Asked, found: Bill) -> Section:
    plan, results = asked.results.plan, asked.results
    ramps = sum(r.ramp for r in results.requests)
    failed = sum(r.error is not None and not r.ramp for r in results.requests)
    rows = [
        ("mode", {"R": "R: real", "S": "S: synthetic", "M": "M: simulated"}[plan.mode]),
        ("blocks finished", ", ".join(f"{len(results.complete_blocks(at))} at {at:g}" for at in plan.levels)),
        ("order", "mirrored within a block (A B B A), the next block begins with the next configuration"),
        ("estimator", "paired log ratio per block, geometric mean, 95 % t interval over blocks"),
        ("requests", f"{len(results.requests)}; left out: {ramps} in ramps, {failed} failed"),
        ("seed", str(plan.seed)),
        ("workload", f"{plan.workload.name}, SHA-256 {plan.workload.sha256}"),
        ("load", f"{plan.load}, {plan.arrivals}"),
        ("version", plan.version),
        *_facts(plan.system),
    ]
    arms = tuple(
        (
            arm.label,
            arm.role,
            lossless(arm.lossless),
            arm.target,
            arm.reset,
            json.dumps({**arm.settings, **arm.fields}, default=str),
        )
        for arm in plan.arms
    )
    cut = _loops_cut(asked)
    return Section(
        title="Method, and how to run it again",
        lead="Everything that is needed to do this once more, and to doubt it.",
        tables=(
            Table(("", ""), tuple(rows)),
            Table(("configuration", "role", "output unchanged", "target", "cache reset", "settings"), arms),
        ),
        notes=(cut,) if cut else (),
        code=plan.command,
    )


def _facts(system: Mapping[str, Any]) -> list[tuple[str, str]]:
    """One level of names is taken apart."""
    rows = []
    for name, value in system.items():
        parts = value.items() if isinstance(value, Mapping) else ((name, value),)
        rows += [(part, ", ".join(map(str, v)) if isinstance(v, list | tuple) else str(v)) for part, v in parts]
    return rows


def _loops_cut(asked: Asked) -> str:
    """The delta again, without answers that loop."""
    looping = sum(bool(r.loops) for r in asked.results.requests)
    if not looping:
        return ""
    try:
        found = bill(without_loops(asked.results), asked.arm, asked.level, asked.money, asked.slo)
    except ValueError as error:
        return f"{looping} answers loop; without them too little is left: {error}."
    return (
        f"Without the {looping} answers that loop (and their like in the other configurations): {delta(found.delta)}."
    )


def _card(card: Mapping[str, Any] | None) -> Section | None:
    if card is None:
        return None
    return Section(
        title="Result card",
        lead="The same for machines: versioned, and hashed over its content.",
        code=json.dumps(card, indent=1, default=str),
    )
