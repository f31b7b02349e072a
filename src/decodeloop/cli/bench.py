"""`decodeloop bench`: one workload, several configurations, a sweep of loads; interleaved, resumable, judged."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer

from decodeloop import __version__
from decodeloop.cli.arm_targets import open_arms, system
from decodeloop.cli.arms import EMBEDDED, keys_of, parse_arm, without_keys
from decodeloop.cli.environment import Environment, read_environment
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
    Blocks,
    Classes,
    Form,
    Key,
    MaxTokens,
    Model,
    PerClass,
    PerTurn,
    Seed,
    Temperature,
    Url,
    WorkloadFile,
)
from decodeloop.cli.opening import stderr
from decodeloop.engine.models.sources import DEFAULT_MODEL
from decodeloop.evaluation.bench import Served, measure
from decodeloop.evaluation.canary import decided
from decodeloop.evaluation.card import Card
from decodeloop.evaluation.journal import Journal, load
from decodeloop.evaluation.plan import Arm, LoadKind, Plan
from decodeloop.evaluation.workloads.workload import Workload


def bench(
    workload: WorkloadFile = None,
    form: Form = "workload",
    arm: Arms = None,
    url: Url = None,
    key: Key = None,
    model: Model = DEFAULT_MODEL,
    concurrency: Annotated[str, typer.Option(help="Requests at once: a closed loop's loads.")] = "1,4",
    rates: Annotated[str | None, typer.Option(help="Requests a second instead: an open loop, Poisson.")] = None,
    trace: Annotated[bool, typer.Option("--trace", help="Open loop by the file's arrivals; --rates: speeds.")] = False,
    blocks: Blocks = 8,
    requests: PerTurn = 8,
    per_class: PerClass = 40,
    classes: Classes = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    out: Annotated[Path, typer.Option(help="A directory for results and cards.")] = Path("bench"),
    until_decided: Annotated[
        bool, typer.Option("--until-decided", help="A canary: stop when every arm is surely faster or slower.")
    ] = False,
    keep_text: Annotated[bool, typer.Option("--keep-text", help="Store the answers themselves.")] = False,
    as_json: AsJson = False,
) -> None:
    """Measure configurations side by side. Interrupted, the same command goes on where it was.

    Exit codes: 0 done; 1 an arm that claims to be lossless gave other answers than the baseline; 3 the run is invalid.
    """
    served = open_workload(workload, form, per_class, classes, temperature, seed)
    typed = [parse_arm(text, url or EMBEDDED) for text in arm or ("off", "adaptive")]
    if len({each.label for each in typed}) < len(typed):
        raise ValueError("arms must have different labels")
    keys = {each.label: key for each in typed} | keys_of(arm or ())
    kind, arrivals, levels = _loads(concurrency, rates, trace)
    fields: dict[str, Any] = {
        "load": kind,
        "arrivals": arrivals,
        "levels": levels,
        "blocks": blocks,
        "requests_per_turn": requests,
        "seed": seed,
        "max_tokens": max_tokens,
    }
    run = out / "run.jsonl"
    most = int(max(levels)) if kind is LoadKind.CLOSED else 32
    try:
        fresh = asyncio.run(
            take(typed, model, keys, most, served, run, fields, stop_early=until_decided, keep_text=keep_text)
        )
    except KeyboardInterrupt:
        stderr.print(f"interrupted: what was measured is in {run}; the same command goes on", soft_wrap=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    cards = cards_of(load(run), run, served, fresh=fresh)
    shared = share_memory(load(run).plan.arms, keys)
    code = _tell(cards, fresh, shared)
    if as_json:
        line = {**told(cards, fresh), "shared_memory": shared, "results": str(run), "exit": code}
        print(orjson.dumps(line).decode())
    if code:
        raise typer.Exit(code)


def _loads(concurrency: str, rates: str | None, trace: bool) -> tuple[LoadKind, str, tuple[float, ...]]:
    """(kind, arrivals, levels). Raises ValueError for what are no numbers, or no whole ones of requests at once."""
    if trace or rates is not None:
        return LoadKind.OPEN, "trace" if trace else "poisson", numbers(rates or "1", "--rates")
    levels = numbers(concurrency, "--concurrency")
    if any(level != int(level) for level in levels):
        raise ValueError(f"--concurrency: {concurrency!r} must hold whole numbers")
    return LoadKind.CLOSED, "closed", levels


async def take(
    typed: Any,
    model: str,
    keys: Mapping[str, str | None],
    most: int,
    workload: Workload,
    run: Path,
    fields: dict[str, Any],
    *,
    stop_early: bool = False,
    keep_text: bool = False,
    name: str = "",
    environment: Environment | None = None,
) -> bool:
    """Open the arms and take what is missing of their plan; whether no request was served twice."""
    async with AsyncExitStack() as stack:
        opened = await open_arms(typed, model, keys, most, environment or read_environment(), stack)
        plan = plan_of(opened.arms, workload, fields)
        served = Served.of(plan, workload)
        with Journal(run, plan) as journal:
            missing = load(run).missing()
            with Bars(plan, len(missing), name) as observer:
                await measure(
                    served,
                    opened.targets,
                    journal,
                    missing,
                    observer=observer,
                    keep_text=keep_text,
                    enough=lambda: stop_early and decided(load(run)),
                )
        return served.fresh


def plan_of(arms: Any, workload: Workload, fields: dict[str, Any]) -> Plan:
    at = datetime.now(UTC)
    return Plan(
        id=f"{at:%Y%m%dT%H%M%SZ}",
        created_at=at.isoformat(timespec="seconds").replace("+00:00", "Z"),
        version=__version__,
        workload=workload.facts(),
        arms=tuple(arms),
        system=system(),
        command=shlex.join(["decodeloop", *without_keys(sys.argv[1:])]),
        **fields,
    )


def share_memory(arms: Sequence[Arm], keys: Mapping[str, str | None]) -> bool:
    """Whether two arms ask one server as the same client: its drafters may remember the other arm's answers."""
    asked = [(arm.target, keys.get(arm.label)) for arm in arms if arm.target != EMBEDDED]
    return len(set(asked)) < len(asked)


def told(cards: dict[str, Card], fresh: bool) -> dict[str, Any]:
    """The JSON line: what a script wants first."""
    first = next(iter(cards.values()))
    return {
        "verdict": verdict(cards),
        "valid": first.validity.valid,
        "faults": list(first.validity.faults),
        "caveats": list(first.validity.caveats),
        "fresh": fresh,
        "workload_sha256": first.workload.sha256,
        "rows": rows(cards),
        "cards": {label: card.sha256 for label, card in cards.items()},
    }


def verdict(cards: dict[str, Card]) -> str:
    if not next(iter(cards.values())).validity.valid:
        return "invalid"
    return "answers differ" if differing(cards) else "measured"


def differing(cards: dict[str, Card]) -> list[str]:
    """Arms that claim to be lossless and gave other answers."""
    parts = {label: card.losslessness for label, card in cards.items()}
    return [label for label, part in parts.items() if part.claimed and part.equal != part.compared]


def rows(cards: dict[str, Card]) -> list[dict[str, Any]]:
    """One an arm and load."""
    found = []
    for label, card in cards.items():
        latency = {part.level: part for part in card.latency if part.request_class is None}
        whole = card.acceptance.get("all")
        for part in card.throughput:
            against, own = part.against_baseline, latency[part.level]
            found.append(
                {
                    "arm": label,
                    "load": part.level,
                    "tok/s": part.output_tokens_per_s,
                    "ratio": against.ratio if against else None,
                    "low": against.low if against else None,
                    "high": against.high if against else None,
                    "ttft_ms_p50": own.ttft_ms.p50 if own.ttft_ms else None,
                    "tpot_ms_p50": own.tpot_ms.p50 if own.tpot_ms else None,
                    "tok/piece": own.tokens_per_piece,
                    "mal": whole.mal_step_weighted if whole else None,
                    "accepted": whole.rate if whole else None,
                }
            )
    return found


def _tell(cards: dict[str, Card], fresh: bool, shared: bool) -> int:
    first = next(iter(cards.values()))
    if not first.validity.valid:
        print("INVALID RUN: its figures say nothing about the configurations")
    for said in (*first.validity.faults, *first.validity.caveats):
        print(f"  - {said}")
    if not fresh:
        print("  - requests came more than once: drafters that remember answers are flattered")
    if shared:
        print("  - arms ask one server as one client: drafters that remember answers know the other arm's (;key=...)")
    for line in table(rows(cards)):
        print(line)
    for label, card in cards.items():
        part = card.losslessness
        if part.compared:
            print(f"{label}: {part.equal} of {part.compared} answers are the baseline's, byte for byte")
    loops = first.workload.looping_share
    if loops:
        print(f"{loops:.0%} of the baseline's answers loop, which flatters drafters that copy (cards: without_loops)")
    if not first.validity.valid:
        return EXIT_INVALID
    return EXIT_NO if differing(cards) else 0
