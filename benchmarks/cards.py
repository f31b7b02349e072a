"""One workload, three engines, three cards, and another client:  python benchmarks/cards.py [--json] [--only NAME,...]

The same workload file against our server, llama.cpp's and vLLM's CPU build, the same weights in bfloat16, greedy: each
gets a run of `decodeloop bench` and a card for each of its configurations; `decodeloop compare` then says of each pair
whether it may be compared, and how they differ. Runs follow one another, so that a machine that drifts between them is
in the ratio. And AIPerf (--aiperf PROGRAM, in an environment of its own) on our server beside our own client: the same
requests, one at a time, paired, each client twice; the noise is a client's second run against its first.

Engines are fetched and built into --cache once (see peers.py); one that can't be had is named in the result. --out
keeps runs and cards: interrupted, the same command goes on. Exit status 1: two cards can't be compared, or clients
disagree.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import agreement
from engines.lines import Unavailable
from engines.servers import Contender, contenders
from engines.subjects import Bench

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import fetch_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models.sources import DEFAULT_MODEL

EXTRA = "aiperf"


def bench_run(contender: Contender, options: argparse.Namespace, workload: Path) -> dict[str, Any]:
    """Raises Unavailable."""
    folder = options.out / contender.name
    folder.mkdir(parents=True, exist_ok=True)
    loads = options.loads.split(",")
    with contender.start(folder, max(map(int, loads))) as arms:
        words = ["bench", workload, "--blocks", options.blocks, "--requests", options.requests, "--json"]
        words += ["--concurrency", options.loads, "--max-tokens", options.tokens, "--temperature", 0, "--out", folder]
        words += [word for arm in arms for word in ("--arm", arm)]
        return told(words, fine=(0,))


def told(words: list[Any], *, fine: tuple[int, ...]) -> dict[str, Any]:
    """The JSON line of a command of ours. Raises Unavailable for other exit codes than `fine`."""
    command = [sys.executable, "-m", "decodeloop", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in fine:
        raise Unavailable(f"{words[0]} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-400:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def compare(runs: dict[str, dict[str, Any]], out: Path) -> list[dict[str, Any]]:
    """Every card of one engine with every card of another."""
    cards = {name: {label: out / name / f"{label}.card.json" for label in run["cards"]} for name, run in runs.items()}
    rows = []
    for one, other in combinations(runs, 2):
        for mine, path in cards[one].items():
            for theirs, against in cards[other].items():
                said = told(["compare", path, against, "--json"], fine=(0, 1, 3))
                rows.append({"one": f"{one} {mine}", "other": f"{other} {theirs}", **said})
    return rows


def show(runs: dict[str, dict[str, Any]], compared: list[dict[str, Any]]) -> None:
    for name, run in runs.items():
        print(f"\n{name}: {run['verdict']}, workload {run['workload_sha256'][:12]}")
        for row in run["rows"]:
            against = "" if row["ratio"] is None else f"  {row['ratio']:.2f}x [{row['low']:.2f}, {row['high']:.2f}]"
            times = f"TTFT {row['ttft_ms_p50']:7.1f} ms  TPOT {row['tpot_ms_p50']:6.2f} ms"
            mal = "-" if row["mal"] is None else f"{row['mal']:.2f}"
            speed = f"{row['load']:4.0f} at once  {row['tok/s']:7.1f} tokens/s"
            print(f"  {row['arm']:<14} {speed}  {times}  MAL {mal}{against}")
    print("\ncards, output tokens a second, the second over the first")
    for pair in compared:
        ratios = [
            f"{s['ratio']:.2f} [{s['low']:.2f}, {s['high'] or float('inf'):.2f}] at {s['load']:g}"
            for s in pair["shared"]
        ]
        print(f"  {pair['one']:<14} {pair['other']:<22} {pair['verdict']}: {'; '.join(ratios)}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="of ours, llama.cpp, vllm and aiperf; comma-separated")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--requests", type=int, default=3, help="measured, of each arm, load and half a block")
    parser.add_argument("--loads", default="1,4")
    parser.add_argument("--tokens", type=int, default=24, help="of an answer, at most")
    parser.add_argument("--aiperf", default="aiperf", help="AIPerf's program")
    parser.add_argument("--port", type=int, default=18700, help="the first of four that are taken, one after the other")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--cache", type=Path, default=read_environment().cache / "peers")
    parser.add_argument("--out", type=Path, default=Path("cards"))
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = parse()
    threads = options.threads or read_hardware().threads
    bench = Bench(fetch_model(DEFAULT_MODEL, read_environment()), options.cache, threads)
    entrants = contenders(bench, options.port)
    wanted = options.only.split(",") if options.only else [*entrants, EXTRA]
    options.out.mkdir(parents=True, exist_ok=True)
    workload, missing = options.out / "workload.jsonl", {}
    told(["workload", "suite", "--out", workload, "--per-class", 25, "--json"], fine=(0,))
    runs: dict[str, dict[str, Any]] = {}
    agreed: list[agreement.Agreement] = []
    for name, contender in entrants.items():
        if name in wanted:
            try:
                runs[name] = bench_run(contender, options, workload)
            except (Unavailable, OSError, subprocess.SubprocessError) as error:
                missing[name] = str(error)
    if EXTRA in wanted:
        try:
            agreed = agreement.measure(bench, options.port, options.out / "agreement", options.aiperf)
        except (Unavailable, OSError) as error:
            missing[EXTRA] = str(error)
    compared = compare(runs, options.out)
    print(f"{read_hardware().device}, {threads} threads")
    show(runs, compared)
    agreement.show(agreed)
    for name, reason in missing.items():
        print(f"missing: {name}: {reason}")
    if options.json:
        rows = {name: run["rows"] for name, run in runs.items()}
        pairs = [{key: pair[key] for key in ("one", "other", "verdict", "shared", "differences")} for pair in compared]
        print(json.dumps({"runs": rows, "pairs": pairs, "agreement": agreement.to_json(agreed), "missing": missing}))
    comparable = all(pair["verdict"] == "comparable" for pair in compared)
    return int(not comparable or not all(each.agrees for each in agreed))


if __name__ == "__main__":
    sys.exit(main())
