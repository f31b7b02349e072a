"""Writes steps.jsonl: one StepRecord a line, rotated and bounded. Serving never waits for the disk."""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import IO

import orjson

from decodeloop.types import STEPS_SCHEMA, Provenance, StepRecord

log = logging.getLogger(__name__)


class StepRecorder:
    """Holds at most `max_queued` records, and `files` files of `max_bytes` each (FILE, FILE.1, ...).

    What can't be queued or written is dropped and counted in `lost`; the first loss is logged. A file that others move
    away or delete (logrotate does) is opened anew.
    """

    def __init__(
        self,
        path: Path,
        provenance: Provenance,
        *,
        max_bytes: int = 64 << 20,
        files: int = 4,
        max_queued: int = 10_000,
    ) -> None:
        self._path, self._max_bytes, self._files = path, max_bytes, files
        self._header = orjson.dumps({"schema": STEPS_SCHEMA, "provenance": asdict(provenance)}) + b"\n"
        self._queue: queue.Queue[StepRecord | None] = queue.Queue(max_queued)
        self._file: IO[bytes] | None = None
        self._written = 0
        self.lost = 0
        self._why = ""
        self._losing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="decodeloop-recorder", daemon=True)

    def start(self) -> None:
        """Open the file, so that a path that can't be written is known at once. Raises OSError."""
        self._open()
        self._thread.start()

    def observe(self, record: StepRecord) -> None:
        try:
            self._queue.put_nowait(record)
        except queue.Full:
            self._lose(1, "the queue is full")

    def flush(self) -> None:
        """Wait until everything observed so far is written or lost."""
        self._queue.join()

    def close(self) -> None:
        """Write what is queued, then stop."""
        self._queue.put(None)
        self._thread.join()

    def counters(self) -> Mapping[str, float]:
        return {"step_records_lost_total": float(self.lost)}

    def warnings(self) -> list[str]:
        return [f"{self.lost} step records were lost: {self._why}"] if self.lost else []

    def _run(self) -> None:
        while True:
            batch = [self._queue.get()]
            while not self._queue.empty():
                batch.append(self._queue.get())
            self._write([record for record in batch if record is not None])
            for _ in batch:
                self._queue.task_done()
            if None in batch:
                self._close()
                return

    def _write(self, records: list[StepRecord]) -> None:
        if not records:
            return
        try:
            data = b"".join(
                orjson.dumps(asdict(record), option=orjson.OPT_SERIALIZE_NUMPY) + b"\n" for record in records
            )
            if self._file is not None and self._moved(self._file):
                self._close()
            if self._file is None:
                self._open()
            elif self._written + len(data) > self._max_bytes:
                self._rotate()
            self._append(data)
        except (OSError, TypeError) as error:  # the disk; or a value that is no JSON, from a policy or a drafter
            self._lose(len(records), str(error))
            self._close()  # and try to open anew with the next records

    def _open(self) -> None:
        self._file = self._path.open("ab", buffering=0)
        self._written = self._file.tell()
        # Where a full disk cut a line short, the next record must not continue it.
        self._append(self._header if self._written == 0 else b"\n" if self._cut_short() else b"")

    def _moved(self, file: IO[bytes]) -> bool:
        try:
            return not os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        except FileNotFoundError:
            return True

    def _cut_short(self) -> bool:
        with self._path.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read() != b"\n"

    def _append(self, data: bytes) -> None:
        assert self._file is not None
        while data:
            count = self._file.write(data)
            self._written += count
            data = data[count:]

    def _close(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._file.close()
            self._file = None

    def _rotate(self) -> None:
        self._close()
        for age in range(self._files - 2, -1, -1):
            source = self._path if age == 0 else self._path.with_name(f"{self._path.name}.{age}")
            if source.exists():
                os.replace(source, self._path.with_name(f"{self._path.name}.{age + 1}"))
        self._open()

    def _lose(self, records: int, why: str) -> None:
        with self._losing:  # the engine's thread or ours
            if self.lost == 0:
                log.warning("step records are being lost: %s", why)
            self._why = why
            self.lost += records
