"""JSON lines in files that are rotated, written by a thread of its own; serving never waits for it."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson

__all__ = ["LinesFile"]

log = logging.getLogger(__name__)

MOST_WAITING = 2_000


class LinesFile:
    """Owns `directory`/`kind`-`name`-*.jsonl, readable by its owner alone. render: what a line says, worked out on the
    thread. Of all files of the kind the newest `most_files` are left. lost: lines that could not be kept."""

    def __init__(
        self,
        directory: Path,
        kind: str,
        name: str,
        *,
        most_bytes: int,
        most_files: int,
        render: Callable[[Any], Any],
    ) -> None:
        self._directory, self._kind, self._name = directory, kind, name
        self._most_bytes, self._most_files, self._render = most_bytes, most_files, render
        self._values: queue.Queue[Any] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name=f"decodeloop-{kind}", daemon=True)
        self._part = self._written = 0
        self.lost = 0

    def start(self) -> None:
        """Raises OSError where nothing can be written."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(self._directory, os.W_OK):
            raise PermissionError(f"{self._directory} can't be written")
        self._thread.start()

    def write(self, value: Any) -> None:
        """Queue a value that isn't None."""
        try:
            self._values.put_nowait(value)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        """Once what is queued is written."""
        self._values.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (value := self._values.get()) is not None:
            try:
                self._append(orjson.dumps(self._render(value)) + b"\n")
            except Exception as error:  # whatever it is, the next one is tried
                self.lost += 1
                log.warning("a line of %s could not be written: %s", self._kind, error)

    def _append(self, line: bytes) -> None:
        if self._written and self._written + len(line) > self._most_bytes:
            self._part, self._written = self._part + 1, 0
        path = self._directory / f"{self._kind}-{self._name}-{self._part:04d}.jsonl"
        with open(path, "ab", opener=_for_its_owner) as file:
            file.write(line)
        if not self._written:
            self._prune()
        self._written += len(line)

    def _prune(self) -> None:
        files = sorted(
            self._directory.glob(f"{self._kind}-*.jsonl"), key=lambda path: (path.stat().st_mtime, path.name)
        )
        for path in files[: -self._most_files]:
            path.unlink(missing_ok=True)


def _for_its_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
