"""`decodeloop economics`: what a measured run costs, class by class, and what that hangs on."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from decodeloop.cli import money as options
from decodeloop.cli.policy import read as read_steps
from decodeloop.cli.sections import show, show_json, show_validity
from decodeloop.evaluation.attribution import Attribution, attribute
from decodeloop.evaluation.economics import Money, marginal_usd
from decodeloop.evaluation.economics_roi import Events, Outcome, outcomes, read_events, returns
from decodeloop.evaluation.economics_run import Bill, ClassBill, Source, bill, request_ms
from decodeloop.evaluation.economics_sensitivity import usd_saved_per_million
from decodeloop.evaluation.economics_tasks import TaskCosts, TaskRequest, roll_up
from decodeloop.evaluation.journal import load
from decodeloop.evaluation.report_money import alternatives, bottom_line, by_class, margins, sensitivity, tasks
from decodeloop.evaluation.report_validity import validity
from decodeloop.evaluation.report_words import Section, Table, delta, optional, percent, usd
from decodeloop.evaluation.results import Results


def economics(
    context: typer.Context,
    run: options.Run,
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
    request_price: Annotated[
        list[str] | None, typer.Option(help="What a request brings: CLASS=USD or USD for all; repeatable.")
    ] = None,
    other_share: Annotated[float, typer.Option(min=0.0, max=1.0, help="Of the price, for everything else.")] = 0.0,
    steps: Annotated[
        list[Path] | None, typer.Option(help="What `serve --record` wrote: device time of each request from its steps.")
    ] = None,
    events: Annotated[Path | None, typer.Option(help="What clients told (JSON lines): suggestions and tasks.")] = None,
    require_saving: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Exit with 1 unless at least this share is surely saved.")
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Print what a RUN costs. Exit code 1: the required saving is not shown; 3: the run is invalid."""
    results = load(run)
    judged = options.judged(results, arm, level)
    money = options.money_of(context.params)
    slo = options.slo_of(ttft_ms, tpot_ms)
    found, valid = bill(results, judged.arm, judged.level, money, slo), validity(results)
    told = None if events is None else read_events(events.read_text("utf-8").splitlines())
    by_task = _tasks(results, found, money)
    brings = _request_prices(request_price or [])
    show_validity(valid)
    show([bottom_line(found, money, options.power_said(money)), by_class(found)])
    show([alternatives(results, judged.level, money, slo)])
    if by_task:
        show([tasks(list(by_task.items()))])
    if brings:
        show([margins(found, brings, other_share)])
    work = _returns(results, found, money)
    show([_roi(work, told), sensitivity(found, money)])
    attributed = None if steps is None else attribute(read_steps(steps).records)
    if attributed is not None:
        show([_recorded(attributed, money)])
    met = require_saving is None or (found.delta.blocks >= 2 and found.delta.high <= -require_saving)
    if as_json:
        show_json(_told(found, money, {"valid": valid.valid, "saving_shown": met, "faults": valid.faults}, work))
    if not valid.valid:
        raise typer.Exit(options.EXIT_INVALID)
    if not met:
        raise typer.Exit(options.EXIT_NO)


def _request_prices(given: list[str]) -> dict[str, float]:
    """Raises ValueError for what is no price."""
    found = {}
    for each in given:
        name, _, amount = each.rpartition("=")
        try:
            found[name or "default"] = float(amount)
        except ValueError:
            raise ValueError(f"--request-price {each!r}: expected CLASS=USD, or USD for all") from None
    return found


def _tasks(results: Results, found: Bill, money: Money) -> dict[str, TaskCosts]:
    """By arm; where requests name sessions and servers tell times."""
    if found.source is not Source.SERVER:
        return {}
    by_arm = {}
    for name in (found.baseline, found.arm):
        own = [r for r in results.steady(arm=name, level=found.level) if r.error is None]
        rolled = roll_up(
            TaskRequest(
                None if r.session is None else f"{r.session} {r.block} {r.turn}",  # a block serves a task once a turn
                marginal_usd(money.usd_per_hour, request_ms(r)),
                r.e2e_ms / 1e3,
            )
            for r in own
        )
        if rolled is not None:
            by_arm[name] = rolled
    return by_arm


def _returns(results: Results, found: Bill, money: Money) -> dict[str, dict[str, float]]:
    """Work per dollar of each arm's turns."""
    rows = {}
    for name in (found.baseline, found.arm):
        turns = [t for t in results.turns if t.arm == name and t.level == found.level]
        seconds = sum(t.seconds for t in turns)
        if money.usd_per_hour * seconds > 0.0:
            whole = [r for r in results.steady(arm=name, level=found.level) if r.error is None]
            got = returns(
                name,
                usd_per_hour=money.usd_per_hour,
                seconds=seconds,
                output_tokens=sum(t.tokens for t in turns),
                requests=len(whole),
            )
            rows[name] = {"output_tokens_per_usd": got.output_tokens_per_usd, "requests_per_usd": got.requests_per_usd}
    return rows


def _roi(work: dict[str, dict[str, float]], told: Events | None) -> Section:
    rows = tuple((n, f"{w['output_tokens_per_usd']:,.0f}", f"{w['requests_per_usd']:,.0f}") for n, w in work.items())
    tables = [Table(("configuration", "output tokens per USD", "requests per USD"), rows)]
    notes = []
    if told is not None:
        heads = ("configuration", "suggestions shown", "accepted", "share", "tasks", "completed", "seconds, p50", "p90")
        tables.append(Table(heads, tuple(_outcome_row(each) for each in outcomes(told.events))))
        notes = [f"line {number} is no event: {why}" for number, why in told.malformed.items()]
    return Section(
        title="Return",
        lead="Work per dollar of the device."
        + ("" if told is None else " What clients made of it is theirs to tell: suggestions and tasks."),
        tables=tuple(tables),
        notes=tuple(notes),
    )


def _outcome_row(each: Outcome) -> tuple[str, ...]:
    share = "not told" if each.acceptance is None else percent(each.acceptance)
    times = (optional(value, ".1f") for value in (each.completion_s_p50, each.completion_s_p90))
    return each.arm or "-", str(each.shown), str(each.accepted), share, str(each.tasks), str(each.completed), *times


def _recorded(found: Attribution, money: Money) -> Section:
    """From steps.jsonl: what each class took, summing to what was measured."""
    rows = []
    for c, own in sorted(found.by_class().items()):
        whole, made = sum(r.total_ms for r in own), sum(r.output_tokens for r in own)
        cost = marginal_usd(money.usd_per_hour, whole)
        rows.append(
            (str(c), str(len(own)), f"{whole:.1f}", usd(cost / len(own)), usd(cost / made * 1e6) if made else "-")
        )
    missing = found.measured_ms - found.attributed_ms
    return Section(
        title="Device time by recorded steps",
        lead=f"{found.measured_ms:.1f} ms of steps, {found.attributed_ms:.1f} ms of them over requests "
        f"({percent(missing / found.measured_ms if found.measured_ms else 0.0)} left).",
        tables=(Table(("class", "requests", "ms", "cost each", "per million output tokens"), tuple(rows)),),
    )


def _told(found: Bill, money: Money, more: dict[str, Any], work: dict[str, dict[str, float]]) -> dict[str, Any]:
    return {
        "arm": found.arm,
        "baseline": found.baseline,
        "level": found.level,
        "delta": asdict(found.delta),
        "throughput": asdict(found.throughput),
        "saved": delta(found.delta),
        "usd_saved_per_million_requests": usd_saved_per_million(found, money),
        "usd_per_hour": money.usd_per_hour,
        "capacity": {found.baseline: asdict(found.off), found.arm: asdict(found.on)},
        "classes": {str(each.request_class): _class(each) for each in found.classes},
        "tails": [str(each.request_class) for each in found.tails],
        "unmeasured": [str(c) for c in found.unmeasured],
        "per_usd": work,
        **more,
    }


def _class(each: ClassBill) -> dict[str, Any]:
    accepted = None if each.acceptance is None else msgspec.to_builtins(each.acceptance)
    return {**asdict(replace(each, acceptance=None)), "acceptance": accepted}
