"""Opens a model by its name, with a progress bar where something is fetched."""

from __future__ import annotations

import subprocess
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from decodeloop import __version__
from decodeloop.cli.environment import Environment
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import list_known, open_checkpoint, resolve
from decodeloop.types import Provenance

stderr = Console(stderr=True)


def open_model(model: str, environment: Environment) -> Checkpoint:
    """The checkpoint that `model` names: a file, a directory, a hub name, or a known package model."""
    return open_checkpoint(fetch_model(model, environment))


def short_name(model: str) -> str:
    """What requests call `model` by default: its short or hub name, or its file's."""
    known = next((row.name for row in list_known() if model in (row.name, row.source)), None)
    path = Path(model).expanduser()
    if known is not None or not path.exists():
        return known or model
    return path.stem if path.is_file() else path.resolve().name


def fetch_model(model: str, environment: Environment) -> Path:
    """Where `model` is on this machine, fetched if need be."""
    with Bars() as bars:
        return resolve(model, environment.models, observer=bars)


class Bars:
    """A FetchObserver that draws a progress bar for each thing that is fetched, on stderr."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._progress = Progress(*columns, console=stderr)
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Bars:
        self._progress.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._progress.stop()

    def progress(self, what: str, done_bytes: int, total_bytes: int) -> None:
        if what not in self._tasks:
            self._tasks[what] = self._progress.add_task(what, total=total_bytes or None)
        self._progress.update(self._tasks[what], completed=done_bytes)

    def notice(self, text: str) -> None:
        stderr.print(text, style="dim", highlight=False)


def provenance(checkpoint: Checkpoint, device: str, config_hash: str) -> Provenance:
    return Provenance(
        version=__version__,
        git_sha=git_sha(),
        model_hash=checkpoint.sha256,
        device=device,
        config_hash=config_hash,
    )


def git_sha() -> str:
    """Of a source checkout; empty for an installed release, wherever that lies."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return ""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False, timeout=5
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip() if found.returncode == 0 else ""
