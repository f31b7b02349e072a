"""`decodeloop report`: a measured run as one offline page, and as Markdown."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from decodeloop.cli import money as options
from decodeloop.cli import pilot_facts
from decodeloop.cli.opening import git_sha
from decodeloop.cli.sections import show_json, show_validity
from decodeloop.evaluation import card_build
from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.economics_card import economics_part
from decodeloop.evaluation.economics_run import bill
from decodeloop.evaluation.journal import load
from decodeloop.evaluation.report import Asked, Report, build, to_html, to_markdown
from decodeloop.evaluation.results import Results


def report(
    context: typer.Context,
    run: options.Run,
    html: Annotated[Path | None, typer.Option(help="Where the page goes; else beside the run, as .html.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Where the Markdown goes; else beside the run, as .md.")] = None,
    arm: options.Arm = None,
    level: options.Level = None,
    price: options.UsdPerHour = None,
    device: options.Device = None,
    prices: options.Prices = None,
    devices: options.Devices = 1,
    watts: options.Watts = None,
    usd_per_kwh: options.UsdPerKwh = 0.0,
    pue: options.Pue = 1.0,
    ttft_ms: options.TtftMs = None,
    tpot_ms: options.TpotMs = None,
    as_json: options.AsJson = False,
) -> None:
    """Write a RUN's report, with what a pilot kept beside it. Exit code 3: the run is invalid (the report says why)."""
    results = load(run)
    judged = options.judged(results, arm, level)
    money = options.money_of(context.params)
    facts = pilot_facts.read(run.parent)
    asked = Asked(
        results=results,
        arm=judged.arm,
        level=judged.level,
        money=money,
        slo=options.slo_of(ttft_ms, tpot_ms),
        power=options.power_said(money),
        card=card_of(results, run, judged, money),
        predicted=facts.predicted,
        extra=pilot_facts.sections(facts),
    )
    built = build(asked)
    page, text = html or run.with_suffix(".html"), markdown or run.with_suffix(".md")
    write(built, page, text)
    print(built.verdict.headline)
    show_validity(built.validity)
    print(f"{page}\n{text}")
    if as_json:
        show_json(
            {
                "arm": judged.arm,
                "level": judged.level,
                "verdict": built.verdict.answer,
                "headline": built.verdict.headline,
                "valid": built.validity.valid,
                "faults": built.validity.faults,
                "html": str(page),
                "markdown": str(text),
            }
        )
    if not built.validity.valid:
        raise typer.Exit(options.EXIT_INVALID)


def card_of(results: Results, run: Path, judged: options.Judged, money: Money) -> dict[str, Any]:
    """The judged arm's card, with what it costs."""
    found = bill(results, judged.arm, judged.level, money)
    artefacts = {run.name: hashlib.sha256(run.read_bytes()).hexdigest()}
    card = card_build.build(
        results, judged.arm, commit=git_sha() or None, artefacts=artefacts, economics=economics_part(found, money)
    )
    told: dict[str, Any] = msgspec.to_builtins(card)
    return told


def write(built: Report, page: Path, text: Path) -> None:
    page.write_text(to_html(built), encoding="utf-8")
    text.write_text(to_markdown(built), encoding="utf-8")
