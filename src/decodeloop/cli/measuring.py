"""What commands that measure share: workloads as they are typed, progress, exit codes, cards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from decodeloop.cli.opening import git_sha, stderr
from decodeloop.evaluation import card_build
from decodeloop.evaluation.bench import Observer
from decodeloop.evaluation.card import Card, encode
from decodeloop.evaluation.plan import Plan, TurnKey
from decodeloop.evaluation.results import Results, Turn
from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.file import read_file
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.evaluation.workloads.workload import Workload

EXIT_NO, EXIT_INVALID, EXIT_INTERRUPTED = 1, 3, 130
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")


def open_workload(
    path: Path | None, form: str, per_class: int, classes: str | None, temperature: float, seed: int
) -> Workload:
    """A file, or the mini-suite. Requests that name no temperature get `temperature`: servers' defaults differ."""
    wanted = tuple(request_class(name.strip()) for name in classes.split(",")) if classes else ()
    if path is None:
        workload = mini_suite(per_class, seed=seed, classes=wanted)
    else:
        imported = read_file(path, form)
        for note in imported.notes():
            stderr.print(note, style="yellow", highlight=False, soft_wrap=True)
        workload = imported.workload
        if wanted:
            kept = tuple(request for request in workload.requests if request.request_class in wanted)
            workload = replace(workload, requests=kept)
    if not workload.requests:
        raise ValueError(f"workload {workload.name} has no request to serve")
    requests = (replace(r, params={"temperature": temperature, **r.params}) for r in workload.requests)
    return replace(workload, requests=tuple(requests))


def sampling_of(workload: Workload) -> dict[str, Any]:
    """Parameter -> the values that requests have."""
    found = {name: {r.params[name] for r in workload.requests if name in r.params} for name in SAMPLING}
    return {name: sorted(values) for name, values in found.items() if values}


def numbers(text: str, what: str) -> tuple[float, ...]:
    """Comma-separated positive numbers, ascending. Raises ValueError."""
    try:
        found = tuple(sorted({float(part) for part in text.split(",")}))
    except ValueError:
        raise ValueError(f"{what}: {text!r} is no list of numbers like 1,4,8") from None
    if not found or found[0] <= 0.0:
        raise ValueError(f"{what}: {text!r} must hold numbers above 0")
    return found


class Bars:
    """A progress bar over a plan's turns, on stderr."""

    def __init__(self, plan: Plan, missing: int, name: str = "") -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, TimeRemainingColumn(), console=stderr)
        total = sum(1 for _ in plan.turns())
        self._task = self._progress.add_task(name or "measuring", total=total, completed=total - missing)
        self._name, self._requests = name, 0

    def __enter__(self) -> Observer:
        self._progress.start()
        return Observer(request=self._request, turn=self._turn)

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def _request(self, _: object) -> None:
        self._requests += 1

    def _turn(self, key: TurnKey, turn: Turn | None) -> None:
        if turn is None:
            level, block, _, arm = key
            said = f"{self._name} block {block + 1}, load {level:g}, {arm}".strip()
            self._progress.update(self._task, description=said)
        else:
            self._progress.advance(self._task)


def cards_of(
    results: Results, run: Path, workload: Workload, *, fresh: bool | None, folder: Path | None = None
) -> dict[str, Card]:
    """A card an arm, written to `folder`, else beside the run's file."""
    artefacts = {run.name: hashlib.sha256(run.read_bytes()).hexdigest(), "workload": workload.sha256}
    made = {}
    for arm in results.plan.arms:
        card = card_build.build(
            results,
            arm.label,
            commit=git_sha() or None,
            artefacts=artefacts,
            fresh=fresh,
            sampling=sampling_of(workload),
        )
        ((folder or run.parent) / f"{safe(arm.label)}.card.json").write_bytes(encode(card))
        made[arm.label] = card
    return made


def safe(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in label)


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of the same keys as aligned lines."""
    if not rows:
        return []
    heads = list(rows[0])
    cells = [heads, *([_cell(row[head]) for head in heads] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heads))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
