"""A certification in progress: what was asked, what is there already, what is shown of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from decodeloop.cli.environment import Environment
from decodeloop.evaluation.lossless.answers import Journal
from decodeloop.evaluation.lossless.answers import Progress as Report
from decodeloop.evaluation.lossless.outcome import Check, Level, Verdict, verdict_of
from decodeloop.evaluation.lossless.sizes import Sizes
from decodeloop.governance.certificate import Regime

KEPT_S = 24 * 3600  # what an interrupted run collected; older answers are of another day's server


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the command line asks of every level."""

    environment: Environment
    model: str | None
    workload: Path | None
    sizes: Sizes
    black: bool
    declared: Mapping[str, Any]
    fresh: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    verdict: Verdict
    level: Level
    regime: Regime
    checks: tuple[Check, ...]
    why: str = ""


class Watcher:
    """Progress bars on stderr, results as they come on stdout."""

    def __init__(self, console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Watcher:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def of(self, name: str) -> Report:
        def report(done: int, total: int) -> None:
            if name not in self._tasks:
                self._tasks[name] = self._progress.add_task(name, total=total)
            self._progress.update(self._tasks[name], completed=done, total=total)

        return report

    def say(self, text: str) -> None:
        self._progress.console.print(text, highlight=False, soft_wrap=True, markup=False)

    def result(self, check: Check) -> None:
        word = "FAIL" if not check.passed else "open" if check.unsettled else "pass"
        self.say(f"{word}  {check.name}: {check.found}")
        for power in check.power:
            self.say(f"      would have caught: {power}")
        for control in check.controls if not check.controlled else ():
            if not control.caught:
                self.say(f"      NOT CAUGHT, though put in on purpose: {control.name} ({control.found})")
        if check.controlled:
            self.say(f"      {len(check.controls)} violations put in on purpose, all caught")


class Session:
    """The checks of one certification, kept in a journal: what is there already isn't done again."""

    def __init__(self, asked: Asked, name: str, watcher: Watcher) -> None:
        path = asked.environment.cache / "certify" / f"{name}.jsonl"
        if path.exists() and (asked.fresh or time.time() - path.stat().st_mtime > KEPT_S):
            path.unlink()
        self.journal, self._watcher = Journal(path), watcher
        self.checks: list[Check] = []
        self.why = ""  # the run proves nothing
        if len(self.journal):
            watcher.say("going on where an interrupted run stopped (--fresh: from the start)")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.journal.close()

    def run(self, checks: Mapping[str, Callable[[], Check]]) -> None:
        """A target that stops answering ends the run; what was collected is kept."""
        for name, run in checks.items() if not self.why else ():
            kept = self.journal.get(f"check:{name}")
            try:
                check = run() if kept is None else Check.from_json(kept)
            except (OSError, ValueError) as error:
                self.why = f"{name}: {error}"
                self._watcher.say(f"stop  {self.why}")
                return
            self.journal.put(iter([(f"check:{name}", check.to_json())]))
            self._watcher.result(check)
            self.checks.append(check)

    @property
    def told_of_speculation(self) -> bool:
        """Whether answers themselves said that drafts were accepted."""
        return any(check.measured.get("accepted", 0) > 0 for check in self.checks)

    def found(self, level: Level, regime: Regime) -> Found:
        whole = not self.why
        verdict = verdict_of(self.checks) if whole else Verdict.INVALID
        if whole:
            self.journal.path.unlink()
            missed = [f"{k.name}: {c.name} wasn't caught" for k in self.checks for c in k.controls if not c.caught]
            idle = [f"{k.name}: nothing was speculated" for k in self.checks if k.idle]
            open_ = [f"{k.name}: failed at first, and not on answers drawn anew" for k in self.checks if k.unsettled]
            self.why = "; ".join([*missed, *idle, *open_])
        return Found(verdict=verdict, level=level, regime=regime, checks=tuple(self.checks), why=self.why)
