"""`decodeloop cliff`: per class of requests, the load at which speculation stops paying, between two measured loads."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from decodeloop.cli.arm_targets import Opened, open_arms
from decodeloop.cli.arms import EMBEDDED, keys_of, parse_arm
from decodeloop.cli.bench import plan_of
from decodeloop.cli.environment import read_environment
from decodeloop.cli.measuring import (
    EXIT_INTERRUPTED,
    EXIT_INVALID,
    EXIT_NO,
    Bars,
    cards_of,
    numbers,
    open_workload,
    table,
)
from decodeloop.cli.measuring_options import (
    Arms,
    AsJson,
    Form,
    Key,
    MaxTokens,
    Model,
    PerClass,
    Seed,
    Temperature,
    Url,
    WorkloadFile,
)
from decodeloop.cli.opening import stderr
from decodeloop.engine.models.sources import DEFAULT_MODEL
from decodeloop.evaluation.bench import Served, measure
from decodeloop.evaluation.cliff import MIXED, Cell, Findings, Sweep, conclude, summary
from decodeloop.evaluation.journal import Journal, load
from decodeloop.evaluation.plan import Arm
from decodeloop.evaluation.report_validity import validity
from decodeloop.evaluation.results import Results
from decodeloop.evaluation.workloads.workload import Workload


def cliff(
    workload: WorkloadFile = None,
    form: Form = "workload",
    arm: Arms = None,
    url: Url = None,
    key: Key = None,
    model: Model = DEFAULT_MODEL,
    concurrency: Annotated[str, typer.Option(help="Requests at once that are tried first.")] = "1,4,16",
    refine: Annotated[int, typer.Option(min=0, help="Times that each bracket is halved afterwards.")] = 1,
    blocks: Annotated[int, typer.Option(min=2, help="Repetitions that are paired.")] = 8,
    requests: Annotated[int, typer.Option("--requests", min=1, help="Measured requests an arm and half a block.")] = 8,
    per_class: PerClass = 40,
    classes: Annotated[str | None, typer.Option(help="Classes, each on its own; without, all, and their mix.")] = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="A directory for results and cards.")] = Path("cliff"),
    as_json: AsJson = False,
) -> None:
    """Find the cliff. Interrupted, the same command goes on where it was.

    Exit codes: 0 nowhere clearly slower than the baseline; 1 somewhere; 3 the run is invalid.
    """
    whole = open_workload(workload, form, per_class, classes, temperature, seed)
    typed = [parse_arm(text, url or EMBEDDED) for text in arm or ("off", "fixed:4", "adaptive")]
    levels = numbers(concurrency, "--concurrency")
    if any(level != int(level) for level in levels):
        raise ValueError(f"--concurrency: {concurrency!r} must hold whole numbers")
    keys = {each.label: key for each in typed} | keys_of(arm or ())
    asked = Asked(out, blocks, requests, seed, max_tokens)
    try:
        found = asyncio.run(_measure(asked, typed, model, keys, whole, levels, refine))
    except KeyboardInterrupt:
        stderr.print(f"interrupted: what was measured is in {out}; the same command goes on", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    code = _tell(found)
    if as_json:
        print(orjson.dumps({**told(found), "exit": code}, option=orjson.OPT_NON_STR_KEYS).decode())
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, slots=True)
class Asked:
    out: Path
    blocks: int
    requests: int
    seed: int
    max_tokens: int | None


@dataclass(frozen=True, slots=True)
class Found:
    """runs: file -> what it holds."""

    findings: Findings
    ours: str
    runs: Mapping[Path, Results]

    @property
    def faults(self) -> list[str]:
        return [f"{path.stem}: {fault}" for path, run in self.runs.items() for fault in validity(run).faults]


async def _measure(
    asked: Asked,
    typed: Sequence[Arm],
    model: str,
    keys: Mapping[str, str | None],
    whole: Workload,
    levels: tuple[float, ...],
    refine: int,
) -> Found:
    mixes = mixes_of(whole)
    async with AsyncExitStack() as stack:
        opened = await open_arms(typed, model, keys, int(max(levels)), read_environment(), stack)
        runs = await _round(asked, opened, {mix: (own, levels) for mix, own in mixes.items()}, "")
        for turn in range(refine):
            between = brackets(_concluded(runs, opened.arms))
            wanted = {mix: (mixes[mix], (float(load),)) for mix, load in between.items()}
            if not wanted:
                break
            runs |= await _round(asked, opened, wanted, f"-between{turn + 1}")
    return Found(_concluded(runs, opened.arms), ours_of(opened.arms), runs)


async def _round(
    asked: Asked, opened: Opened, wanted: Mapping[str, tuple[Workload, tuple[float, ...]]], suffix: str
) -> dict[Path, Results]:
    """Every mix at its levels, block by block round all of them."""
    async with AsyncExitStack() as stack:
        sides = []
        for mix, (workload, levels) in wanted.items():
            fields: dict[str, Any] = {
                "levels": levels,
                "blocks": asked.blocks,
                "requests_per_turn": asked.requests,
                "seed": asked.seed,
                "max_tokens": asked.max_tokens,
            }
            plan = plan_of(opened.arms, workload, fields)
            path = asked.out / f"{mix}{suffix}.jsonl"
            sides.append((mix, path, Served.of(plan, workload), stack.enter_context(Journal(path, plan)), workload))
        for block in range(asked.blocks):
            for mix, path, served, journal, _ in sides:
                missing = [key for key in load(path).missing() if key[1] == block]
                if missing:
                    with Bars(served.plan, len(load(path).missing()), mix) as observer:
                        await measure(served, opened.targets, journal, missing, observer=observer)
        for _, path, served, _, workload in sides:
            folder = path.with_suffix("")
            folder.mkdir(exist_ok=True)
            cards_of(load(path), path, workload, fresh=served.fresh, folder=folder)
        return {path: load(path) for _, path, _, _, _ in sides}


def mixes_of(whole: Workload) -> dict[str, Workload]:
    """Each class alone, and all together where there are several."""
    alone = {
        str(kind): replace(
            whole, name=f"{whole.name}/{kind}", requests=tuple(r for r in whole.requests if r.request_class is kind)
        )
        for kind in whole.counts
    }
    return alone if len(alone) == 1 else {**alone, MIXED: whole}


def ours_of(arms: Sequence[Arm]) -> str:
    """The arm that is judged: the adaptive one, or the last."""
    return next((arm.label for arm in arms if arm.role == "adaptive"), arms[-1].label)


def _concluded(runs: Mapping[Path, Results], arms: Sequence[Arm]) -> Findings:
    cells = {
        Cell(int(level), path.stem.partition("-between")[0]): run.run(level)
        for path, run in runs.items()
        for level in run.plan.levels
        if run.complete_blocks(level)
    }
    static = [arm.label for arm in arms if arm.role == "static"]
    return conclude(Sweep(cells), ours=ours_of(arms), plain=arms[0].label, fixed=static)


def brackets(findings: Findings) -> dict[str, int]:
    """Mix -> the load to try next: halfway, in ratio, between the last that gains and the first that loses, of any arm;
    the widest gap is halved first. Only where there is a load between."""
    found: dict[str, tuple[float, int]] = {}
    for cliffs in findings.cliffs.values():
        for mix, (last, first) in cliffs.items():
            if last is None or first is None:
                continue
            middle = round(math.sqrt(last * first))
            if last < middle < first and first / last > found.get(mix, (0.0, 0))[0]:
                found[mix] = first / last, middle
    return {mix: middle for mix, (_, middle) in found.items()}


def told(found: Found) -> dict[str, Any]:
    said = summary(found.findings)
    valid = not found.faults
    named = "invalid" if not valid else "never slower" if said["never_slower"] else "slower somewhere"
    return {"verdict": named, "valid": valid, "faults": found.faults, **said, "files": [str(p) for p in found.runs]}


def _tell(found: Found) -> int:
    if found.faults:
        print("INVALID RUN: its figures say nothing about the configurations")
        for fault in found.faults:
            print(f"  - {fault}")
    rows: list[dict[str, Any]] = []
    for arm, cells in found.findings.ratios.items():
        for cell, ratio in cells.items():
            mark = "inconclusive" if ratio.inconclusive else ""
            high = ratio.high if math.isfinite(ratio.high) else None
            rows.append(
                {"arm": arm, "class": cell.mix, "load": cell.load, "ratio": ratio.ratio, "low": ratio.low, "high": high,
                 "blocks": ratio.blocks, "": mark}
            )  # fmt: skip
    print("output tokens a second over the baseline's; intervals hold for an arm's cells together")
    for line in table(rows):
        print(line)
    for arm, cliffs in found.findings.cliffs.items():
        for mix, (last, first) in cliffs.items():
            print(f"{arm}, {mix}: {_between(last, first)}")
    if found.faults:
        return EXIT_INVALID
    claim = found.findings.never_slower
    print(f"{found.ours}: {'nowhere clearly slower' if claim.holds else f'slower at {claim.worst}'} than the baseline")
    return 0 if claim.holds else EXIT_NO


def _between(last: int | None, first: int | None) -> str:
    if last is None and first is None:
        return "neither a gain nor a loss is sure at any load"
    if last is None:
        return f"never surely pays; surely loses from {first} on"
    if first is None:
        return f"pays up to {last} at least; a load at which it loses was not reached"
    return f"pays up to {last}, loses from {first} on"
