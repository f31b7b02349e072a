"""A gateway's audit chain in a file, written by a thread of its own; beside it the head.

What can't be written is counted, and told in the chain once it can be again. Serving never waits for it.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from decodeloop.governance.audit import Entry, Fault, Head, Seal, chained, head_line, read_head, verify

__all__ = ["AuditFile", "chain_files", "verify_file"]

log = logging.getLogger(__name__)

SUFFIX, HEAD_SUFFIX = ".audit.jsonl", ".audit.head"
MOST_WAITING = 20_000
RETRY_S = 1.0
PATIENCE_S = 0.02  # an entry waits for company: nobody waits for it


class AuditFile:
    """Owns `directory`/`name`.audit.jsonl. lost: entries that could not be kept."""

    def __init__(self, directory: Path, name: str, seal: Seal) -> None:
        self._path, self._head_path = directory / f"{name}{SUFFIX}", directory / f"{name}{HEAD_SUFFIX}"
        self._seal = seal
        self._head = Head()
        self._entries: queue.Queue[Entry | None] = queue.Queue(MOST_WAITING)
        self._thread = threading.Thread(target=self._run, name="decodeloop-audit", daemon=True)
        self.lost = 0

    def start(self) -> None:
        """Continue the chain; a line that a crash left half-written is cut off.

        Raises OSError where it can't be written, ValueError where it doesn't verify.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path, "a+b") as file:
            file.seek(0)
            whole = file.read()
            if not whole.endswith(b"\n"):
                file.truncate(whole.rfind(b"\n") + 1)
        self._head, fault = verify_file(self._path, self._seal)
        if fault is not None:
            raise ValueError(f"{self._path}: entry {fault.place}: {fault.what}; move it away to begin a new chain")
        self._thread.start()

    def write(self, entry: Entry) -> None:
        try:
            self._entries.put_nowait(entry)
        except queue.Full:
            self.lost += 1

    def close(self) -> None:
        self._entries.put(None)
        self._thread.join()

    def _run(self) -> None:
        told = 0
        ended = False
        while not ended:
            batch = self._batch()
            ended = batch[-1] is None
            entries = [entry for entry in batch if entry is not None]
            if self.lost > told:
                entries.append(Entry(at_s=time.time(), kind="system", reason="lost", details={"entries": self.lost}))
            if entries and self._append(entries):
                told = self.lost
            elif entries:
                self.lost += sum(entry.kind != "system" for entry in entries)
                if not ended:
                    time.sleep(RETRY_S)

    def _batch(self) -> list[Entry | None]:
        batch = [self._entries.get()]
        if batch[-1] is not None:
            time.sleep(PATIENCE_S)
        while batch[-1] is not None and not self._entries.empty():
            batch.append(self._entries.get())
        return batch

    def _append(self, entries: Sequence[Entry]) -> bool:
        """All of them, or none."""
        lines, head = [], self._head
        for entry in entries:
            line, head = chained(entry, head, self._seal)
            lines.append(line + "\n")
        try:
            with open(self._path, "ab") as file:
                _write_whole(file, "".join(lines).encode())
            temporary = self._head_path.with_suffix(".new")
            temporary.write_text(head_line(head, self._seal) + "\n")
            os.replace(temporary, self._head_path)
        except OSError as error:
            log.warning("the audit can't be written: %s", error)
            return False
        self._head = head
        return True


def _write_whole(file: IO[bytes], data: bytes) -> None:
    end = file.tell()
    try:
        file.write(data)
        file.flush()
    except OSError:
        file.truncate(end)
        raise


def chain_files(directory: Path) -> list[Path]:
    """The chains there: those with a head too whose entries are gone."""
    names = {path.name.removesuffix(SUFFIX) for path in directory.glob(f"*{SUFFIX}")}
    names |= {path.name.removesuffix(HEAD_SUFFIX) for path in directory.glob(f"*{HEAD_SUFFIX}")}
    return [directory / f"{name}{SUFFIX}" for name in sorted(names)]


def verify_file(path: Path, seal: Seal, expected: Head | None = None) -> tuple[Head, Fault | None]:
    """Check a chain against itself, its head file and `expected`, a head that was kept elsewhere."""
    head_path = path.with_name(path.name.removesuffix(SUFFIX) + HEAD_SUFFIX)
    head = expected
    try:
        if head_path.exists():
            own = read_head(head_path.read_text(), seal)
            head = own if head is None or own.count > head.count else head
        text = path.read_text() if path.exists() else ""
    except ValueError as error:
        return Head(), Fault(1, str(error))
    lines = text.split("\n")
    if lines[-1]:
        return Head(), Fault(len(lines), "the last entry is not whole")
    got, fault = verify(lines[:-1], seal, head)
    if fault is None and expected is not None and head is not expected:
        got, fault = verify(lines[:-1], seal, expected)
    return got, fault
