"""`decodeloop pilot`: a proof of concept from a file: run, judge by criteria set in advance, report."""

from __future__ import annotations

import asyncio
import shlex
import sys
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from decodeloop import __version__
from decodeloop.cli import pilot_facts
from decodeloop.cli.arm_targets import SMALL, Opened, open_arms, settings_of, system, weights
from decodeloop.cli.environment import Environment, read_environment
from decodeloop.cli.money import EXIT_INVALID, EXIT_NO, Judged
from decodeloop.cli.opening import stderr
from decodeloop.cli.pilot_arms import Steps, absent, settle
from decodeloop.cli.pilot_bound import Listening, bound_of
from decodeloop.cli.pilot_facts import Facts
from decodeloop.cli.report import card_of, write
from decodeloop.cli.sections import show_json, show_validity
from decodeloop.evaluation.bench import Observer, Served, measure
from decodeloop.evaluation.economics_power import Power, between, read_power
from decodeloop.evaluation.economics_run import request_ms
from decodeloop.evaluation.journal import Journal, load
from decodeloop.evaluation.pilot import EMBEDDED, Pilot, arm_of, plan_of, read_pilot, suite_of
from decodeloop.evaluation.pilot_prediction import predictions
from decodeloop.evaluation.pilot_verdict import judge
from decodeloop.evaluation.plan import TurnKey
from decodeloop.evaluation.report import Asked, Report, build
from decodeloop.evaluation.report_bound import Bound
from decodeloop.evaluation.report_words import Answer, Verdict
from decodeloop.evaluation.results import Results, Turn, key_of
from decodeloop.evaluation.workloads.file import read_file
from decodeloop.evaluation.workloads.workload import Workload
from decodeloop.types import CostModel

EXIT_INTERRUPTED = 130
CODES = {Answer.GO: 0, Answer.NO_GO: EXIT_NO, Answer.INVALID: EXIT_INVALID}


def pilot(
    file: Annotated[Path, typer.Argument(help="The pilot: YAML, see docs/pilot.md.")],
    out: Annotated[
        Path | None, typer.Option(help="A directory for run and report; else FILE.pilot beside FILE.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="Instead of the file's budget.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Begin anew: what was measured before is deleted.")] = False,
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="Measure nothing: judge and report what was measured before.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Run the pilot in FILE and answer go (exit code 0), no-go (1), or that the run is invalid (3).

    Interrupted, the same command goes on where it was: every finished turn is kept.
    """
    environment = read_environment()
    asked = read_pilot(file.read_text("utf-8"), env=environment.variables, source=str(file))
    if minutes is not None:
        asked = replace(asked, budget=replace(asked.budget, minutes=minutes))
    missing = absent(asked, environment)
    asked = asked.without(list(missing))
    folder = out or file.with_suffix(".pilot")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.jsonl"
    if fresh and judge_only:
        raise ValueError("--fresh deletes what --judge-only would judge")
    if fresh:
        for each in (path, folder / pilot_facts.NAME):
            each.unlink(missing_ok=True)
    try:
        if not judge_only:
            asyncio.run(_run(asked, _workload(asked, file.parent), environment, path))
    except KeyboardInterrupt:
        stderr.print(f"interrupted; what was measured is in {path}, and the same command goes on", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    report, verdict = _reported(asked, path, list(missing.values()))
    page, text = folder / "report.html", folder / "report.md"
    write(report, page, text)
    _show(report, verdict, page, text)
    if as_json:
        show_json({**asdict(verdict), "valid": report.validity.valid, "html": str(page), "run": str(path)})
    if CODES[verdict.answer]:
        raise typer.Exit(CODES[verdict.answer])


def _workload(asked: Pilot, beside: Path) -> Workload:
    """Paths are relative to the pilot's file."""
    read = None
    if asked.workload.file is not None:
        imported = read_file(beside / asked.workload.file, asked.workload.form)
        for note in imported.notes():
            stderr.print(note, style="yellow", highlight=False, soft_wrap=True)
        read = imported.workload
    return suite_of(asked.workload, seed=asked.seed, read=read)


async def _run(asked: Pilot, workload: Workload, environment: Environment, path: Path) -> None:
    """Take the turns that are missing, as far as the budget goes; keep what only the run knows, however it ends."""
    async with AsyncExitStack() as stack:
        steps = Steps()
        opened = await open_arms(
            [arm_of(arm) for arm in asked.arms],
            asked.model,
            {arm.label: arm.key for arm in asked.arms},
            max(asked.load.levels),
            environment,
            stack,
            defaults=SMALL,
            observe=steps.observe,
        )
        plan = plan_of(
            asked,
            workload,
            opened.arms,
            system(),
            at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            version=__version__,
            command=shlex.join(["decodeloop", *sys.argv[1:]]),
        )
        served = Served.of(plan, workload)
        journal = stack.enter_context(Journal(path, plan))
        done = load(path)
        before, began_s = read_power(), time.monotonic()
        spent_s = sum(turn.seconds for turn in done.turns)
        meter = stack.enter_context(_Meter(done, opened, steps))

        def enough() -> bool:
            """Of time; one block is taken in any case."""
            over = spent_s + time.monotonic() - began_s > 60.0 * asked.budget.minutes
            return over and bool(load(path).complete_blocks(float(asked.load.judged)))

        heard = Listening(opened.targets[asked.arms[0].label])
        bound = None
        try:
            await measure(
                served,
                {**opened.targets, asked.arms[0].label: heard},
                journal,
                done.missing(),
                observer=Observer(turn=meter.turn),
                enough=enough,
            )
            if heard.heard:
                meter.say("the gap to the bound")
                bound = _bound(asked, opened, heard, steps)
        finally:
            power = between(before, read_power(), max(time.monotonic() - began_s, 1e-3))
            pilot_facts.add(path.parent, _facts(load(path), meter, power, _costs(asked, opened), bound))


def _bound(asked: Pilot, opened: Opened, heard: Listening, steps: Steps) -> Bound | None:
    arm = asked.arm(asked.candidate)
    if arm.target != EMBEDDED:
        return None
    settings = settings_of(arm_of(arm), max(asked.load.levels), SMALL)
    return bound_of(arm.label, settings, asked.load, opened, _costs(asked, opened).get(arm.label), heard, steps)


def _facts(results: Results, meter: _Meter, power: Power, costs: Mapping[str, CostModel], bound: Bound | None) -> Facts:
    alone = [r for r in results.requests if key_of(r) in meter.alone and r.times is not None]
    return Facts(
        power=power.said,
        watts=power.watts,
        requests_ms=sum(map(request_ms, alone)),
        steps_ms=meter.alone_ms,
        predicted=tuple(predictions(results, costs)),
        bound=bound,
    )


def _costs(asked: Pilot, opened: Opened) -> dict[str, CostModel]:
    """Step times were measured for engines that learn; others of the same weights share them."""
    found = dict(opened.surfaces)
    for arm in asked.arms:
        for other, surface in opened.surfaces.items():
            mine, theirs = opened.engines.get(arm.label), opened.engines[other]
            if mine is not None and weights(mine) == weights(theirs):
                found.setdefault(arm.label, surface)
    return found


class _Meter:
    """A progress bar, and the device time of turns with one request at a time (none of which is cut off)."""

    def __init__(self, done: Results, opened: Opened, steps: Steps) -> None:
        total = sum(1 for _ in done.plan.turns())
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=stderr)
        self._task = self._progress.add_task("opening", total=total, completed=total - len(done.missing()))
        self._opened, self._steps, self._before_ms = opened, steps, 0.0
        self.alone: set[TurnKey] = set()
        self.alone_ms = 0.0

    def __enter__(self) -> _Meter:
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def say(self, what: str) -> None:
        self._progress.update(self._task, description=what)

    def turn(self, key: TurnKey, turn: Turn | None) -> None:
        level, block, _, arm = key
        if turn is None:
            settle(self._opened)
            self._before_ms = self._steps.ms
            self._progress.update(self._task, description=f"block {block + 1}, {level:g} at once, {arm}")
            return
        self._progress.advance(self._task)
        if level == 1 and arm in self._opened.engines:
            settle(self._opened)
            self.alone.add(key)
            self.alone_ms += self._steps.ms - self._before_ms


def _reported(asked: Pilot, path: Path, left_out: list[str]) -> tuple[Report, Verdict]:
    facts = pilot_facts.read(path.parent)
    results, money = load(path), asked.price.money(facts.watts)
    for arm in results.plan.arms:
        own = results.steady(arm=arm.label)
        if own and all(request.error is not None for request in own):
            raise ValueError(f"{arm.label}: every request failed, the first with {own[0].error}")
    verdict = judge(results, asked, money, left_out=left_out)
    report = build(
        Asked(
            results=results,
            arm=asked.candidate,
            level=float(asked.load.judged),
            money=money,
            slo=asked.criteria.slo,
            verdict=verdict,
            power=facts.power,
            card=card_of(results, path, Judged(asked.candidate, float(asked.load.judged)), money),
            predicted=facts.predicted,
            extra=pilot_facts.sections(facts),
        )
    )
    return replace(report, title=asked.name), verdict


def _show(report: Report, verdict: Verdict, page: Path, text: Path) -> None:
    print(f"{verdict.answer.upper()}: {verdict.headline}")
    for check in verdict.checks:
        met = "not judged" if check.passed is None else "met" if check.passed else "MISSED"
        print(f"  {met:<10}  {check.name}: {check.said}")
    for said in verdict.advice:
        print(f"  - {said}")
    show_validity(report.validity)
    print(f"{page}\n{text}")
