"""How a benchmark and an engine's process talk: a JSON line asks, a JSON line answers. Standard library alone.

An engine's process imports nothing else of this package, for it may run in that engine's environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


class Unavailable(Exception):
    """An engine that can't take part, and why."""


@dataclass(frozen=True)
class Work:
    """Prompts (token ids) to answer greedily. at_once: streams. ends: whether an end-of-text token ends an answer."""

    arm: str
    prompts: list[list[int]]
    tokens: int
    at_once: int
    ends: bool


@dataclass(frozen=True)
class Said:
    """One answer. decoded tokens came in decode_s: what followed the first, by the engine's own or a reader's clock."""

    tokens: list[int]
    decoded: int
    decode_s: float


@dataclass(frozen=True)
class Block:
    """All answers, in order of the prompts; wall_s from the first asked to the last answered."""

    wall_s: float
    answers: list[Said]


def serve(open_engine: Callable[[], Callable[[Work], Block]]) -> None:
    """Until stdin ends. What the engine itself prints goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.stdout = sys.stderr

    def say(value: Mapping[str, Any]) -> None:
        out.write(json.dumps(value) + "\n")
        out.flush()

    try:
        answer = open_engine()
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"ready": True})
    for line in sys.stdin:
        try:
            say(asdict(answer(Work(**json.loads(line)))))
        except Exception as error:
            say({"error": f"{type(error).__name__}: {error}"})


class Process:
    """An engine's process, from the other side. Raises Unavailable when it doesn't start, doesn't answer or fails."""

    def __init__(self, command: Sequence[str], log: Path, env: Mapping[str, str] | None = None) -> None:
        self._log, self._command = log, command
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **(env or {})},
            )
        try:
            self._read(600.0)
        except Unavailable:
            self.close()
            raise

    def ask(self, work: Work, patience_s: float) -> Block:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(asdict(work)) + "\n")
            self._process.stdin.flush()
        except OSError as error:
            raise Unavailable(f"it has ended ({error}); see {self._log}") from error
        said = self._read(patience_s)
        return Block(said["wall_s"], [Said(**answer) for answer in said["answers"]])

    def _read(self, patience_s: float) -> dict[str, Any]:
        """The next line, or Unavailable when none comes in time."""
        assert self._process.stdout is not None
        watch = threading.Timer(patience_s, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()
        if not line:
            raise Unavailable(f"no answer within {patience_s:.0f} s, or it ended; see {self._log}")
        said: dict[str, Any] = json.loads(line)
        if "error" in said:
            raise Unavailable(f"{said['error']}; see {self._log}")
        return said

    def close(self) -> None:
        """Waits until it has ended; kills it when that takes long."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(20.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
