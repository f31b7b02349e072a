"""What the machine draws, where it says so: RAPL for CPUs, nvidia-smi for GPUs. Where neither answers, that is said."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

RAPL = Path("/sys/class/powercap")
NVIDIA = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits")

Run = Callable[[Sequence[str]], str]  # a command -> its output; OSError or ValueError when it gives none


@dataclass(frozen=True, slots=True)
class Reading:
    """joules: counted up by the CPU packages since some start. watts: drawn by the GPUs now. said: from where."""

    joules: float | None
    watts: float | None
    wrap_joules: float  # at which the counters begin again
    said: str

    @property
    def readable(self) -> bool:
        return self.joules is not None or self.watts is not None


@dataclass(frozen=True, slots=True)
class Power:
    """watts: mean over the time between two readings; None: neither could be taken. said: what it is of, or why not."""

    watts: float | None
    said: str


def read_power(*, rapl: Path = RAPL, run: Run | None = None) -> Reading:
    """What can be read now."""
    joules, wrap, said = _rapl(rapl)
    try:
        lines = (run or _run)(NVIDIA).split()
        watts: float | None = sum(float(line) for line in lines) if lines else None
        gpu = f"nvidia-smi ({len(lines)} devices)"
    except (OSError, ValueError, subprocess.SubprocessError):
        watts, gpu = None, "no nvidia-smi that answers"
    return Reading(joules, watts, wrap, f"{said}; {gpu}")


def between(first: Reading, last: Reading, seconds: float) -> Power:
    """Mean power of a stretch of time: counted energy over time, and the mean of the GPUs' two draws."""
    if seconds <= 0.0:
        raise ValueError("no time has passed between the readings")
    parts = []
    if first.joules is not None and last.joules is not None:
        spent = last.joules - first.joules
        parts.append((spent if spent >= 0.0 else spent + first.wrap_joules) / seconds)
    if first.watts is not None and last.watts is not None:
        parts.append(0.5 * (first.watts + last.watts))
    if not parts:
        return Power(None, f"power was not measured: {last.said}")
    return Power(sum(parts), last.said)


def _rapl(root: Path) -> tuple[float | None, float, str]:
    """(joules of all packages, where they wrap, what was found)."""
    packages = sorted(path for path in root.glob("intel-rapl:*") if path.name.count(":") == 1)
    if not packages:
        return None, 0.0, "no RAPL counters"
    try:
        joules = sum(int((path / "energy_uj").read_text()) for path in packages) / 1e6
        wrap = sum(int((path / "max_energy_range_uj").read_text()) for path in packages) / 1e6
    except (OSError, ValueError) as error:
        return None, 0.0, f"RAPL counters can't be read ({type(error).__name__})"
    return joules, wrap, f"RAPL ({len(packages)} packages)"


def _run(command: Sequence[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout
