"""Decoding beside busy neighbours and under a CPU quota:  python benchmarks/neighbour.py [MODEL] [--json]

One request at a time is decoded plainly by the whole engine: alone, beside one and two processes that never rest, with
a quota of half a core imposed on the running engine, and (an engine of its own) with that quota from the start. The
conditions take turns, window by window. Per condition: the mean time of a step over its mean alone in the same round;
the slowdown that is in proportion (alone it has all cores, beside neighbours its threads' part of them, under the quota
half a core); and the longest time between the ends of two steps. The quota needs the right to make a control group
(version 1 or 2): without it those two conditions are left out, and the output says why.
Exit status 1 when a slowdown is above 1.25 times its proportion, or a step stalled for more than 100 ms.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.ask import ask
from decodeloop.engine.build import build_engine
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.settings import EngineSettings
from decodeloop.types import Request, SamplingParams, StepRecord

QUOTA_CORES = 0.5
PERIOD_US = 100_000
ANSWER_TOKENS = 64
OVER_PROPORTION = 1.25
STALL_MS = 100.0
OLDER, NEWER = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")


class ControlGroup:
    """A control group with a CPU quota of half a core. Raises OSError where it can't be made."""

    def __init__(self) -> None:
        older = (OLDER / "cpu.cfs_quota_us").exists()
        top = OLDER if older else NEWER
        self._outside = top / _own_group(older=older)
        self._directory = top / f"decodeloop-neighbour-{os.getpid()}"
        self._directory.mkdir()
        quota = str(round(QUOTA_CORES * PERIOD_US))
        try:
            if older:
                (self._directory / "cpu.cfs_period_us").write_text(str(PERIOD_US))
                (self._directory / "cpu.cfs_quota_us").write_text(quota)
            else:
                (self._directory / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        except OSError:
            self.remove()
            raise

    def take(self, pid: int) -> None:
        (self._directory / "cgroup.procs").write_text(str(pid))

    def release(self, pid: int) -> None:
        (self._outside / "cgroup.procs").write_text(str(pid))

    def remove(self) -> None:
        self._directory.rmdir()


def _own_group(*, older: bool) -> str:
    """This process's group, below the top."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        hierarchy, controllers, path = line.split(":", 2)
        if "cpu" in controllers.split(",") if older else hierarchy == "0":
            return path.lstrip("/")
    return ""


def decode(model: str, runner: str, pipe: Connection) -> None:
    """A process of its own, begun when told: for each number of seconds that comes in, the ms between steps."""
    pipe.recv()
    ends: list[float] = []

    def note(record: StepRecord) -> None:
        prompt = any(row.prefill_tokens for row in record.rows)
        ends.append(math.nan if prompt else time.perf_counter())

    settings = EngineSettings(runner=runner, policy="off", drafters=(), max_context=512, max_sequences=1)
    checkpoint = open_model(model, read_environment())
    engine = build_engine(checkpoint, settings, clock=time.monotonic, name="model", observers=(note,))
    engine.worker.start()
    params = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    request = Request(id="one", model="model", prompt="Once upon a time there was a river", params=params, seed=1)
    pipe.send(settings.threads or read_hardware().threads)
    while (seconds := pipe.recv()) is not None:
        ends.clear()
        over = time.perf_counter() + seconds
        while time.perf_counter() < over:
            ask(engine, [request], at_once=1)
        gaps = [1e3 * (after - before) for before, after in pairwise(ends)]
        pipe.send([gap for gap in gaps if not math.isnan(gap)])  # from a prompt's step there is no gap
    engine.close(1.0)


def never_rest() -> None:
    while True:
        pass


class Subject:
    """A process that decodes. threads: how many it found fit."""

    def __init__(self, model: str, runner: str, group: ControlGroup | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=decode, args=(model, runner, theirs), daemon=True)
        self._process.start()
        if group is not None:
            group.take(self.pid)
        self._pipe.send("begin")  # in its group by now, as far as it is in one
        self.threads: int = self._pipe.recv()

    @property
    def pid(self) -> int:
        return self._process.pid

    def gaps(self, seconds: float) -> list[float]:
        self._pipe.send(seconds)
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(None)
        self._process.join()


@dataclass(frozen=True, slots=True)
class Condition:
    """limit: the group that the subject is put into for the time of a window."""

    name: str
    in_proportion: float
    subject: Subject
    neighbours: int = 0
    limit: ControlGroup | None = None

    def gaps(self, seconds: float) -> list[float]:
        with self._company(), self._limited():
            return self.subject.gaps(seconds)

    @contextmanager
    def _company(self) -> Iterator[None]:
        context = multiprocessing.get_context("spawn")
        neighbours = [context.Process(target=never_rest, daemon=True) for _ in range(self.neighbours)]
        for neighbour in neighbours:
            neighbour.start()
        time.sleep(1.0 if neighbours else 0.0)  # until they are busy with nothing
        try:
            yield
        finally:
            for neighbour in neighbours:
                neighbour.kill()
                neighbour.join()

    @contextmanager
    def _limited(self) -> Iterator[None]:
        if self.limit is None:
            yield
            return
        self.limit.take(self.subject.pid)
        try:
            yield
        finally:
            self.limit.release(self.subject.pid)


@dataclass(frozen=True, slots=True)
class Found:
    """Of all rounds: the slowdown's median, least and most, the mean step's median, the longest stall."""

    condition: str
    threads: int
    slowdown: float
    slowdown_low: float
    slowdown_high: float
    in_proportion: float
    step_ms: float
    stall_ms: float

    @classmethod
    def of(cls, condition: Condition, windows: Sequence[list[float]], alone: Sequence[list[float]]) -> Found:
        means = [sum(gaps) / len(gaps) for gaps in windows]
        ratios = sorted(mean / (sum(gaps) / len(gaps)) for mean, gaps in zip(means, alone, strict=True))
        return cls(
            condition=condition.name,
            threads=condition.subject.threads,
            slowdown=round(median(ratios), 2),
            slowdown_low=round(ratios[0], 2),
            slowdown_high=round(ratios[-1], 2),
            in_proportion=round(condition.in_proportion, 2),
            step_ms=round(median(means), 2),
            stall_ms=round(max(max(gaps) for gaps in windows), 1),
        )

    @property
    def missed(self) -> bool:
        return self.slowdown > OVER_PROPORTION * self.in_proportion or self.stall_ms > STALL_MS


def neighbourly(subject: Subject) -> list[Condition]:
    cores = min(os.cpu_count() or 1, subject.threads)
    conditions = [Condition("alone", 1.0, subject)]
    for count, words in ((1, "one neighbour"), (2, "two neighbours")):
        share = min(cores, cores * subject.threads / (subject.threads + count))
        conditions.append(Condition(words, cores / share, subject, neighbours=count))
    return conditions


def measure(conditions: Sequence[Condition], rounds: int, seconds: float) -> list[Found]:
    windows: dict[str, list[list[float]]] = {condition.name: [] for condition in conditions}
    for _ in range(rounds):
        for condition in conditions:
            windows[condition.name].append(condition.gaps(seconds))
    return [Found.of(condition, windows[condition.name], windows["alone"]) for condition in conditions]


def run(options: argparse.Namespace, group: ControlGroup | None) -> list[Found]:
    subjects = [Subject(options.model, options.runner)]
    conditions = neighbourly(subjects[0])
    if group is not None:
        proportion = subjects[0].threads / QUOTA_CORES
        subjects.append(Subject(options.model, options.runner, group))
        conditions.append(Condition("half a core, imposed", proportion, subjects[0], limit=group))
        conditions.append(Condition("half a core, from the start", proportion, subjects[1]))
    found = measure(conditions, options.rounds, options.seconds)
    for subject in subjects:
        subject.close()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runner", default="native")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a window")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    group, refusal = None, None
    try:
        group = ControlGroup()
    except OSError as error:
        refusal = f"no quota can be set here: {error}"
    try:
        found = run(options, group)
    finally:
        if group is not None:
            group.remove()
    show(found, options)
    missed = [f.condition for f in found if f.missed]
    if refusal is not None:
        print(refusal)
    if options.json:
        values = {"benchmark": "neighbour", "device": read_hardware().device, "refusal": refusal, "missed": missed}
        print(json.dumps({**values, "found": [asdict(f) for f in found]}))
    return int(bool(missed))


def show(found: Sequence[Found], options: argparse.Namespace) -> None:
    print(f"{read_hardware().device}; {options.rounds} rounds of {options.seconds} s")
    print(f"{'':28} {'threads':>7} {'step ms':>8} {'slowdown':>18} {'in proportion':>14} {'longest stall ms':>17}")
    for f in found:
        spread = f"{f.slowdown:.2f} ({f.slowdown_low:.2f}-{f.slowdown_high:.2f})"
        print(
            f"{f.condition:28} {f.threads:7} {f.step_ms:8.2f} {spread:>18} {f.in_proportion:14.2f} {f.stall_ms:17.1f}"
        )


if __name__ == "__main__":
    sys.exit(main())
