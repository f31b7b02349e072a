"""`decodeloop policy replay`: what another policy would have done with recorded steps."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer

from decodeloop.cli.assignments import open_policy
from decodeloop.evaluation.steps import Steps, read_steps
from decodeloop.evaluation.trust import noise
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample, held_out_errors
from decodeloop.policy.replay import Situation, cost_samples, replay
from decodeloop.policy.replayed import Replay
from decodeloop.types import RequestClass, StepRecord

app = typer.Typer(name="policy", help="Speculation policies.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Speculation policies over recorded steps."""


@app.command("replay")
def replay_command(
    files: Annotated[list[Path], typer.Argument(help="What `serve --record` wrote; of a rotation, the oldest first.")],
    policy: Annotated[
        str, typer.Option(help="off, fixed, reference, adaptive, throughput or interactive.")
    ] = "adaptive",
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A setting or option of the policy: name=value; repeatable.")
    ] = None,
    cost: Annotated[
        Path | None, typer.Option(help="A measured cost surface; without one it is fitted to the record itself.")
    ] = None,
    max_draft_len: Annotated[
        int | None, typer.Option(min=1, help="Of the engine that recorded; without it, the longest draft there is.")
    ] = None,
    tpot_ms: Annotated[
        float | None, typer.Option(min=0.0, help="Every request's objective; the record doesn't tell.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="End with one JSON line.")] = False,
) -> None:
    """Run a policy over recorded steps: throughput and time per token of each class, against the record's own."""
    steps = read(files)
    samples = cost_samples(steps.records)
    if not samples:
        raise ValueError(f"{files[0]}: no step in it has decoded anything")
    surface = CostSurface(samples) if cost is None else read_surface(cost)
    longest = max_draft_len or max(steps.max_draft_len, 1)
    playing = open_policy(policy, assignments or (), _fresh(surface), max_draft_len=longest)
    found = replay(playing, steps.records, surface, Situation(longest, tpot_ms or None))
    told = {
        **found.to_json(),
        "policy": policy,
        "cost": _told(surface, samples, cost),
        "noise": _noise(steps.records),
        "cut_short": steps.cut_short,
    }
    _print(found, told)
    if as_json:
        print(orjson.dumps(told).decode())


def read(files: list[Path]) -> Steps:
    """Raises OSError or ValueError, with the file's name."""
    steps = Steps()
    for path in files:
        with path.open("rb") as file:
            part = read_steps(file, source=str(path))
        steps = Steps(
            list(chain(steps.records, part.records)),
            part.provenance or steps.provenance,
            steps.cut_short + part.cut_short,
        )
    return steps


def read_surface(path: Path) -> CostSurface:
    """A file of the cost cache. Raises ValueError for what is none."""
    try:
        return CostSurface.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _fresh(surface: CostSurface) -> CostSurface:
    """The same measurements in a surface of its own: policies teach theirs."""
    return CostSurface.from_json(surface.to_json())


def _told(surface: CostSurface, samples: list[CostSample], source: Path | None) -> dict[str, Any]:
    """Where the times come from, and how far they are from the record's."""
    if source is None:
        errors = held_out_errors(samples)
    else:
        predicted = np.array([surface.step_ms(s.tokens, s.context, s.sequences) for s in samples])
        errors = np.abs(predicted / np.array([s.ms for s in samples]) - 1.0)
    return {
        "source": "the record" if source is None else str(source),
        "samples": len(samples),
        "error_median": round(float(np.median(errors)), 4),
        "error_p95": round(float(np.quantile(errors, 0.95)), 4),
    }


def _noise(records: Sequence[StepRecord]) -> dict[str, Any] | None:
    """What no model of shapes can foresee."""
    found = noise([record for record in records if record.rows and record.step_ms > 0.0])
    return None if found is None else asdict(found)


def _print(found: Replay, told: dict[str, Any]) -> None:
    cost = told["cost"]
    print(
        f"{found.measured.steps} decode steps, {found.measured.total.rows} rows; step times from {cost['source']}, "
        f"{'held-out ' if cost['source'] == 'the record' else ''}error {cost['error_median']:.1%} median, "
        f"{cost['error_p95']:.1%} p95; in total {found.time_error:+.1%}"
    )
    if (own := told["noise"]) is not None:
        print(f"steps differ from the median of their own shape by {own['median']:.1%} median, {own['p95']:.1%} p95")
    parts = {"measured": found.measured, "recorded, by the model": found.recorded, told["policy"]: found.replayed}
    for name, part in parts.items():
        speedup = f"  {found.speedup:.3f}x" if part is found.replayed else ""
        per_row = part.verified / max(part.total.rows, 1)
        print(f"{name:<24} {1e3 * part.rate:9.1f} tokens/s  {per_row:5.2f} verified a row{speedup}")
    print(f"{'class':<18} {'rows':>7}  TPOT ms: measured  by the model  {told['policy']:>12}  verified a row")
    for name in found.measured.classes:
        print(_class_line(found, name))
    print("reasons: " + ", ".join(f"{reason} {count}" for reason, count in found.replayed.reasons.most_common()))
    for line in _unknown(found, told["cut_short"]):
        print(f"not in the record: {line}")


def _class_line(found: Replay, name: RequestClass) -> str:
    measured, recorded, replayed = (p.classes[name] for p in (found.measured, found.recorded, found.replayed))
    return (
        f"{name:<18} {measured.rows:7d}  {measured.tpot_ms:17.2f}  {recorded.tpot_ms:12.2f}  {replayed.tpot_ms:12.2f}  "
        f"{replayed.verified / max(replayed.rows, 1):14.2f}"
    )


def _unknown(found: Replay, cut_short: int) -> list[str]:
    told = []
    if found.replayed.guessed_share:
        told.append(
            f"{found.replayed.guessed_share:.1%} of the tokens are guesses: drafts verified further than anyone looked"
        )
    if found.replayed.blind_share:
        told.append(
            f"{found.replayed.blind_share:.1%} of the rows have no draft and decode plainly, whatever the policy"
        )
    if cut_short:
        told.append(f"{cut_short} lines were cut short")
    return told
