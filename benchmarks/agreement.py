"""Another client on the same server: AIPerf's figures beside our own, request by request. See cards.py."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

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
    """theirs: AIPerf over the mean of our two runs. again: our second run over our first: the noise."""

    measure: str
    requests: int
    theirs: Ratio
    again: Ratio

    @property
    def agrees(self) -> bool:
        """Not surely different, or no further from 1 than two runs of our own may be."""
        reach = max(self.again.high, 1.0 / self.again.low)
        return self.theirs.low <= 1.0 <= self.theirs.high or 1.0 / reach <= self.theirs.ratio <= reach


def measure(bench: Bench, port: int, folder: Path, program: str) -> list[Agreement]:
    """Ours, AIPerf, ours again: the same requests, one at a time, of a server that keeps no prefix. Clients get a core
    of their own: AIPerf takes more of it than we do, and would slow the server that it measures.

    Raises Unavailable.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    workload = folder / "workload.jsonl"
    _decodeloop("workload", "suite", "--out", workload, "--per-class", PER_CLASS, "--seed", 7)
    names = [request.id for request in read_file(workload).workload.requests]
    *served, last = sorted(os.sched_getaffinity(0))
    threads = {"threads": len(served)} if served else {}
    with own_server(bench, port, folder, {**SETTINGS, **threads}, 1, cores=served) as url, held_to({last}):
        first = _ours(workload, folder / "ours", url, len(names))
        options = ("--tokenizer", chat_model(bench), "--program", program, "--model", NAME, "--workload", workload)
        options += ("--concurrency", 1, "--requests", len(names), "--max-tokens", TOKENS)
        _decodeloop("results", "aiperf", url, "--out", folder / "aiperf", *options, log=folder / "aiperf.log")
        second = _ours(workload, folder / "again", url, len(names))
    asked = sorted(load(folder / "aiperf" / "run.jsonl").requests, key=lambda request: request.sent_s)
    if len(asked) != len(names):
        raise Unavailable(f"AIPerf tells of {len(asked)} requests, not {len(names)}")
    return compare(first, dict(zip(names, asked, strict=True)), second)


@contextmanager
def held_to(cores: set[int]) -> Iterator[None]:
    """This process, and those that it starts meanwhile."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def compare(
    first: Mapping[str, RequestResult], theirs: Mapping[str, RequestResult], second: Mapping[str, RequestResult]
) -> list[Agreement]:
    """Pairs are requests; of those that all three have a figure for. Raises Unavailable where they aren't the same."""
    for name, request in theirs.items():
        told = {(r.prompt_tokens, r.completion_tokens) for r in (first[name], request, second[name])}
        if len(told) > 1:
            raise Unavailable(f"{name}: tokens of prompt and answer differ between the clients: {told}")
    found = []
    for measure, of in MEASURES.items():
        rows = [(of(first[name]), of(theirs[name]), of(second[name])) for name in theirs]
        whole = [row for row in rows if None not in row]
        a, b, c = ([float(row[place] or 0.0) for row in whole] for place in range(3))
        mean = [(x * z) ** 0.5 for x, z in zip(a, c, strict=True)]
        found.append(Agreement(measure, len(whole), ratio_of(log_ratios(b, mean)), ratio_of(log_ratios(c, a))))
    return found


def _ours(workload: Path, folder: Path, url: str, count: int) -> dict[str, RequestResult]:
    arm = f"fixed={url};engine=decodeloop"
    options = ("--blocks", 1, "--requests", count // 2, "--concurrency", 1, "--max-tokens", TOKENS)
    _decodeloop("bench", workload, *options, "--temperature", 0, "--arm", arm, "--out", folder)
    return {request.id: request for request in load(folder / "run.jsonl").steady()}


def _decodeloop(*words: object, log: Path | None = None) -> None:
    command = [sys.executable, "-m", "decodeloop", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if log is not None:
        log.write_text(done.stdout + done.stderr)
    if done.returncode:
        raise Unavailable(f"{' '.join(command[2:5])}: {(done.stderr or done.stdout).strip()[-400:]}")


def show(found: Sequence[Agreement]) -> None:
    for each in found:
        theirs, again = (f"{r.ratio:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in (each.theirs, each.again))
        word = "agrees" if each.agrees else "DIFFERS"
        print(f"{each.measure:<18} {each.requests} requests: AIPerf/ours {theirs}; ours again/ours {again}: {word}")


def to_json(found: Sequence[Agreement]) -> list[dict[str, object]]:
    rows = []
    for each in found:
        ratios = {"aiperf_over_ours": each.theirs, "ours_again_over_ours": each.again}
        told = {name: [round(v, 4) for v in (r.ratio, r.low, r.high)] for name, r in ratios.items()}
        rows.append({"measure": each.measure, "requests": each.requests, **told, "agrees": each.agrees})
    return json.loads(json.dumps(rows))
