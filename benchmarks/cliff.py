"""The batch-size cliff, and who falls off it:  python benchmarks/cliff.py [--quick] [--run FILE] [--json]

Loads 1 to 32, five classes of requests and a mix of them, arms off, fixed draft lengths, the literature's rules
(reference) and adaptive, all on the native engine, side by side: a slice of some 40 ms of each arm by turns. Rates are
decode tokens a second while the load is held: requests follow each other, prompts lie in the prefix cache, what ends a
turn is a number of tokens.
Every arm decodes the same answers (the engine is lossless), which were decoded plainly beforehand to see where they
begin to loop; there they end, so that no loop flatters a copying drafter. --loops leaves the loops in. Before the first
block arms that learn serve each cell for a second or two that are not counted.

--run FILE keeps what was measured and goes on where it stopped; --minutes ends early with what there is. The last line
is JSON: worst, best, geomean, inconclusive, and what else the blocks say.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from class_answers import PROMPTS, TEMPERATURES, Workload
from closed_loop import Arms, Served
from side_by_side import serve_side_by_side

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.arms import Measurement
from decodeloop.evaluation.cliff import MIXED, Cell, Findings, Sweep, conclude, grid, summary, sweep
from decodeloop.evaluation.workload import read_prompts

WEIGHTS = {
    "code_edit": 2.0,
    "code_synthesis": 2.0,
    "structured_json": 1.5,
    "general_chat": 2.0,
    "creative_writing": 0.5,
}
LOADS = (1, 2, 4, 8, 16, 32)
TURN_TOKENS = {1: 192, 2: 96, 4: 64, 8: 40, 16: 32, 32: 24}  # of each of the requests that run at once
WARM_TOKENS = 800  # of each cell, once
FIXED = ("fixed 2", "fixed 4", "fixed 8")
ARMS = ("off", *FIXED, "reference", "adaptive")


@dataclass
class Diary:
    """What the steps of each cell and arm were made of, for whoever wants to know why."""

    sums: dict[str, Counter[str]]

    def add(self, cell: Cell, arm: str, served: Served) -> None:
        own = self.sums.setdefault(f"{cell} {arm}", Counter())
        own["ms"] += 1e3 * served.seconds
        for record in served.records:
            own["steps"] += 1
            for part in ("draft_ms", "verify_ms", "sample_ms", "overhead_ms"):
                own[part] += getattr(record, part)
            for row in record.rows:
                own["rows"] += 1
                own["tokens"] += row.emitted
                own["verified"] += row.verify_len
                own["accepted"] += row.accepted

    def line(self, cell: Cell, arm: str) -> str:
        own = self.sums[f"{cell} {arm}"]
        steps, rows = own["steps"], own["rows"]
        parts = ", ".join(
            f"{p[:-3]} {own[p] / steps:.2f}" for p in ("draft_ms", "verify_ms", "sample_ms", "overhead_ms")
        )
        return (
            f"{arm:10} {1e3 * own['tokens'] / own['ms']:7.1f} tok/s  {own['ms'] / steps:6.2f} ms a step ({parts}), "
            f"verified {own['verified'] / rows:.2f}, accepted {own['accepted'] / rows:.2f} a row"
        )


def table(findings: Findings, cells: Sequence[Cell]) -> Iterator[str]:
    yield f"{'cell':24}" + "".join(f"{arm:>22}" for arm in findings.ratios)
    for cell in cells:
        ratios = [own[cell] for own in findings.ratios.values() if cell in own]
        yield f"{cell!s:24}" + "".join(f"{r.ratio:8.3f} [{r.low:.2f}, {r.high:.2f}]" for r in ratios)


@dataclass(frozen=True)
class Plan:
    """What is to be measured, for how long at most."""

    cells: Sequence[Cell]
    arms: Sequence[str]
    blocks: int
    minutes: float


class Measuring:
    """One run: what has been measured, and the file that keeps it."""

    def __init__(self, arms: Arms, workload: Workload, path: Path | None) -> None:
        self._arms, self._workload, self._path = arms, workload, path
        self.found, self.book = Sweep(), Diary({})
        self._started_s = time.monotonic()
        if path is not None and path.exists():
            data = json.loads(path.read_text())
            self.found = Sweep.from_json(data["sweep"])
            self.book = Diary({name: Counter(own) for name, own in data["diary"].items()})
            workload.read(data["workload"])

    def run(self, plan: Plan) -> Findings:
        fixed = [arm for arm in plan.arms if arm.startswith("fixed")]
        self.found = sweep(
            self._serve,
            plan.cells,
            plan.arms,
            plan.blocks,
            found=self.found,
            save=self._save,
            told=lambda cell, block: tell(f"block {block + 1} of {cell}", self._started_s),
            out_of_time=lambda: time.monotonic() - self._started_s > 60 * plan.minutes,
        )
        return conclude(self.found, ours=plan.arms[-1], fixed=fixed, weights=WEIGHTS)

    def warm(self, plan: Plan) -> None:
        """Whoever learns serves every cell for a while that is not counted: what a cell has taught, it has taught."""
        for cell in plan.cells:
            tell(f"warming up: {cell}", self._started_s)
            for arm in plan.arms:
                if arm == "off" or arm in FIXED:
                    continue
                stream = self._workload.stream(cell, 0)
                self._arms.loops[arm].serve(stream, cell.load, lambda served: served.tokens >= WARM_TOKENS)

    def _serve(self, cell: Cell, arms: Sequence[str], turn: int) -> dict[str, Measurement]:
        quota = cell.load * TURN_TOKENS.get(cell.load, 24)
        loops = {arm: self._arms.loops[arm] for arm in arms}
        streams = {arm: self._workload.stream(cell, turn) for arm in arms}
        found = {}
        for arm, served in serve_side_by_side(loops, streams, load=cell.load, tokens=quota).items():
            self.book.add(cell, arm, served)
            found[arm] = Measurement(tokens=served.tokens, seconds=served.seconds, requests=len(served.answers))
        return found

    def _save(self, found: Sweep) -> None:
        if self._path is None:
            return
        part = self._path.with_suffix(".part")
        kept = {"sweep": found.to_json(), "diary": self.book.sums, "workload": self._workload.to_json()}
        part.write_text(json.dumps(kept))
        part.replace(self._path)


def tell(text: str, since_s: float) -> None:
    print(f"[{(time.monotonic() - since_s) / 60:5.1f} min] {text}", file=sys.stderr, flush=True)


def open_arms(options: argparse.Namespace, plan: Plan) -> Arms:
    settings = EngineSettings(
        runner=options.runner,
        dtype=options.dtype,
        drafters=("ngram", "suffix"),
        drafter_options={"suffix": {"library_tokens": 0}},  # no arm remembers what another block's answer was
        max_context=4096,  # so that the KV memory holds the requests of all arms
        max_sequences=max(cell.load for cell in plan.cells),
        max_step_tokens=512,
        kv_memory_mb=2048,
        max_draft_len=options.max_draft_len,
    )
    arms = Arms(open_model(options.model, read_environment()), settings)
    for name in plan.arms:
        policy, _, length = name.partition(" ")
        arms.open(name, policy, draft_len=int(length or 4))
    return arms


def planned(options: argparse.Namespace) -> Plan:
    loads = [int(n) for n in options.loads.split(",")] if options.loads else ((1, 4, 16) if options.quick else LOADS)
    mixes = ["code_edit", "general_chat", MIXED] if options.quick else [*map(str, TEMPERATURES), MIXED]
    cells = grid(loads, options.classes.split(",") if options.classes else mixes)
    if options.quick and not options.loads and not options.classes:
        cells = [*cells, Cell(4, "creative_writing")]
    arms = options.arms.split(",")
    if arms[0] != "off" or len(arms) < 2:
        raise SystemExit("--arms begins with off, which the others are compared with, and names another one")
    return Plan(cells, arms, options.blocks, options.minutes or (8.0 if options.quick else 1e9))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="nine cells, eight minutes")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--dtype", default="auto", help="of the weights, like bf16")
    parser.add_argument("--loads", help="of the requests at once, like 1,4,16")
    parser.add_argument("--classes", help="like code_edit,general_chat,mixed")
    parser.add_argument("--arms", default=",".join(ARMS), help="off first, the one that is judged last")
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--minutes", type=float, help="stop after so many")
    parser.add_argument("--max-draft-len", type=int, default=EngineSettings().max_draft_len)
    parser.add_argument("--loops", action="store_true", help="leave looping text in")
    parser.add_argument("--run", type=Path, help="file of the measurement, to go on with")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")
    options = parser.parse_args()
    plan = planned(options)
    arms = open_arms(options, plan)
    workload = Workload(arms.loops["off"].engine.intake, read_prompts(PROMPTS.read_text().splitlines()))
    measuring = Measuring(arms, workload, options.run)
    if not workload.scripts:
        workload.write(arms, max(cell.load for cell in plan.cells), cut_loops=not options.loops)
    described: Mapping[str, Any] = {}
    try:
        measuring.warm(plan)
        findings = measuring.run(plan)
        described = arms.loops[plan.arms[-1]].describe()
    finally:
        arms.close()
    device = f"{read_hardware().device}; {arms.runner.info.name} {arms.runner.info.weight_format}"
    if not options.json:
        print(f"{device}; answers that loop: {workload.looping_shares()}{', left in' if options.loops else ', cut'}")
        report(findings, measuring, plan, described)
    print(json.dumps({**summary(findings), "looping": workload.looping_shares(), "device": device}))


def report(findings: Findings, measuring: Measuring, plan: Plan, described: Mapping[str, Any]) -> None:
    cells = [cell for cell in plan.cells if cell in next(iter(findings.ratios.values()))]
    print("\n".join(table(findings, cells)))
    for cell in cells:
        print(f"{cell}:")
        for arm in plan.arms:
            print(f"  {measuring.book.line(cell, arm)}")
    for key in ("guard", "reasons", "drift", "gain_predicted", "cost"):
        print(key, json.dumps(described.get(key), default=str))


if __name__ == "__main__":
    main()
