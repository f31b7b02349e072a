"""Another client on the same server: AIPerf's figures beside our own, request by request. See cards.py."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from engines.lines import Unavailable
from engines.servers import NAME, chat_model, own_server
from engines.subjects import Bench

from decodeloop.evaluation.journal import load
from decodeloop.evaluation.results import RequestResult
from decodeloop.evaluation.statistics import Ratio, log_ratios, ratio_of
from decodeloop.evaluation.workloads.file import read_file

SETTINGS = {"dtype": "bf16", "policy": "fixed", "drafters": ["ngram"], "draft_len": 4}
PER_CLASS, TOKENS = 5, 40


def accepted_length(request: RequestResult) -> float | None:
    drafting = request.drafting
    return None if drafting is None or not drafting.drafts else 1.0 + drafting.accepted / drafting.drafts


MEASURES: Mapping[str, Callable[[RequestResult], float | None]] = {
    "TTFT": lambda request: request.ttft_ms,
    "TPOT": lambda request: request.tpot_ms,
    "acceptance length": accepted_length,
}


@dataclass(frozen=True)
class Agreement:
    """theirs: AIPerf's two runs over ours. noise: of each client's second run over its first."""

    measure: str
    requests: int
    theirs: Ratio
    noise: Mapping[str, Ratio]

    @property
    def agrees(self) -> bool:
        """Not surely different, or no further from 1 than two runs of one client may be."""
        reach = max(max(each.high, 1.0 / each.low) for each in self.noise.values())
        return self.theirs.low <= 1.0 <= self.theirs.high or 1.0 / reach <= self.theirs.ratio <= reach


def measure(bench: Bench, port: int, folder: Path, program: str) -> list[Agreement]:
    """Ours, AIPerf, AIPerf, ours: the same requests, one at a time, of a server that keeps no prefix. Clients get a
    core of their own: AIPerf takes more of it than we do, and would slow the server that it measures.

    Raises Unavailable.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    workload = folder / "workload.jsonl"
    _decodeloop("workload", "suite", "--out", workload, "--per-class", PER_CLASS, "--seed", 7)
    names = [request.id for request in read_file(workload).workload.requests]
    *served, last = sorted(os.sched_getaffinity(0))
    settings = {**SETTINGS, **({"threads": len(served)} if served else {})}
    with own_server(bench, port, folder, settings, 1, cores=served) as url, held_to({last}):
        first = _ours(workload, folder / "ours", url, names)
        command = ("--program", program, "--tokenizer", chat_model(bench))
        theirs = [_aiperf(command, workload, folder / f"aiperf{turn}", url, names) for turn in (1, 2)]
        second = _ours(workload, folder / "again", url, names)
    return compare([first, second], theirs)


def compare(
    ours: Sequence[Mapping[str, RequestResult]], theirs: Sequence[Mapping[str, RequestResult]]
) -> list[Agreement]:
    """Two runs of each. Pairs are requests; of those that all have a figure for. Raises Unavailable where they aren't
    the same."""
    runs = [*ours, *theirs]
    for name in ours[0]:
        told = {(run[name].prompt_tokens, run[name].completion_tokens) for run in runs}
        if len(told) > 1:
            raise Unavailable(f"{name}: tokens of prompt and answer differ between the clients: {told}")
    found = []
    for measure, of in MEASURES.items():
        rows = [[of(run[name]) for run in runs] for name in ours[0]]
        whole = np.array([row for row in rows if None not in row], dtype=float)
        a, b, c, d = whole.T
        both = ratio_of(log_ratios(np.sqrt(c * d), np.sqrt(a * b)))
        noise = {"ours": ratio_of(log_ratios(b, a)), "AIPerf": ratio_of(log_ratios(d, c))}
        found.append(Agreement(measure, len(whole), both, noise))
    return found


@contextmanager
def held_to(cores: set[int]) -> Iterator[None]:
    """This process, and those that it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _ours(workload: Path, folder: Path, url: str, names: Sequence[str]) -> dict[str, RequestResult]:
    arm = f"fixed={url};engine=decodeloop"
    options = ("--blocks", 1, "--requests", len(names) // 2, "--concurrency", 1, "--max-tokens", TOKENS)
    _decodeloop("bench", workload, *options, "--temperature", 0, "--arm", arm, "--out", folder)
    return {request.id: request for request in load(folder / "run.jsonl").steady()}


def _aiperf(
    command: Sequence[object], workload: Path, folder: Path, url: str, names: Sequence[str]
) -> dict[str, RequestResult]:
    """It sends in the workload's order, one after the other, and names no request."""
    options = ("--workload", workload, "--concurrency", 1, "--requests", len(names), "--max-tokens", TOKENS)
    _decodeloop("results", "aiperf", url, "--out", folder, "--model", NAME, *command, *options)
    asked = sorted(load(folder / "run.jsonl").requests, key=lambda request: request.sent_s)
    if len(asked) != len(names):
        raise Unavailable(f"AIPerf tells of {len(asked)} requests, not {len(names)}")
    return dict(zip(names, asked, strict=True))


def _decodeloop(*words: object) -> None:
    command = [sys.executable, "-m", "decodeloop", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[2:5])}: {(done.stderr or done.stdout).strip()[-400:]}")


def show(found: Sequence[Agreement]) -> None:
    for each in found:
        again = "; ".join(f"{name} again {_said(ratio)}" for name, ratio in each.noise.items())
        word = "agrees" if each.agrees else "DIFFERS"
        print(f"{each.measure:<18} {each.requests} requests: AIPerf/ours {_said(each.theirs)}; {again}: {word}")


def _said(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def to_json(found: Sequence[Agreement]) -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for each in found:
        ratios = {"theirs_over_ours": each.theirs, **{f"{name}_again": ratio for name, ratio in each.noise.items()}}
        told = {name: [round(value, 4) for value in (r.ratio, r.low, r.high)] for name, r in ratios.items()}
        rows.append({"measure": each.measure, "requests": each.requests, **told, "agrees": each.agrees})
    return rows
