"""Our engine beside others, on the same weights:  python benchmarks/peers.py [--quick] [--json] [--only NAME,...]

Ours (native, bf16 and int4: plain, fixed n-gram drafts, adaptive) against llama.cpp (BF16, Q4_1 as shipped, Q4_0
--pure: plain, --spec-default, ngram-simple), transformers (plain, prompt lookup) and vLLM's CPU build (plain): 20 copy
and edit prompts and 20 open ones, written for this project, one at a time; and 4, 8 and 16 streams of them. Every
engine gets the same token ids and decodes greedily. Blocks are interleaved: every engine answers a few prompts, then
all again with the next few, each second time in reverse order; figures are medians over blocks, with the least and the
most, and ratios are taken within a block. One at a time, a speed is tokens after the first over their time, by the
engine's own clock, and an answer ends where the model ends it; among streams it is all tokens over all time, prompts
included, and answers have one length. `equal`: answers that are the plain, lone answer of the same engine, token for
token as far as both go. "Through HTTP" is our server with 16 streaming clients on the same cores, against the engine
alone. Engines that are slow here (transformers, vLLM) get one prompt of a kind in a block, and streams in one block.

Other engines are fetched and built into --cache once (llama.cpp: 20 minutes of 2 cores; vLLM: 3.4 GB); one that can't
be had is named in the result. Exit status 1 when a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from engines.goals import Figures, Row, goals, ratios
from engines.lines import Block, Process, Unavailable, Work
from engines.subjects import Bench, Subject, gather

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import fetch_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.sources import DEFAULT_MODEL, open_checkpoint
from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.types import ChatPrompt

HERE = Path(__file__).parent
PROMPTS = HERE / "data" / "prompts.jsonl"
STREAMS = (4, 8, 16)
PATIENCE_S = 300.0


@dataclass(frozen=True)
class Cell:
    subject: Subject
    arm: str
    streams: int
    kind: str  # copy, open, or mixed among streams

    @property
    def row(self) -> Row:
        return self.subject.name, self.arm, self.streams, self.kind


class Measurement:
    """The processes, started as they are needed, and what they answered."""

    def __init__(self, eos: frozenset[int], tokens: int, missing: dict[str, str]) -> None:
        self._eos, self._tokens = eos, tokens
        self._processes: dict[str, Process] = {}
        self.figures: dict[Row, Figures] = {}
        self.missing = missing

    def open(self, cells: Iterable[Cell], warm: list[int]) -> None:
        for cell in cells:
            key = cell.subject.key(cell.arm, cell.streams)
            if key in self._processes or key in self.missing:
                continue
            try:
                self._processes[key] = cell.subject.start(cell.arm, cell.streams)
                self._processes[key].ask(Work(cell.arm, [warm] * cell.streams, 8, cell.streams, False), PATIENCE_S)
                print(f"ready: {key}", file=sys.stderr, flush=True)
            except Unavailable as error:
                self.missing[key] = str(error)

    def run(self, cell: Cell, block: int, prompts: dict[str, list[int]]) -> None:
        key = cell.subject.key(cell.arm, cell.streams)
        if key in self.missing:
            return
        alone = cell.streams == 1
        work = Work(cell.arm, list(prompts.values()), self._tokens, cell.streams, ends=alone)
        try:
            said = self._processes[key].ask(work, PATIENCE_S)
        except Unavailable as error:
            self.missing[key] = str(error)
            return
        print(f"block {block + 1}: {', '.join(map(str, cell.row))}: {said.wall_s:.1f} s", file=sys.stderr, flush=True)
        figures = self.figures.setdefault(cell.row, Figures())
        figures.blocks[block] = self._measure(said, alone)
        figures.answers |= {
            name: self._until_end(answer.tokens) for name, answer in zip(prompts, said.answers, strict=True)
        }

    def _measure(self, said: Block, alone: bool) -> tuple[int, float]:
        if alone:
            return sum(answer.decoded for answer in said.answers), sum(answer.decode_s for answer in said.answers)
        return self._tokens * len(said.answers), said.wall_s

    def _until_end(self, tokens: list[int]) -> list[int]:
        end = next((place for place, token in enumerate(tokens) if token in self._eos), len(tokens))
        return tokens[:end]

    def close(self) -> None:
        for process in self._processes.values():
            process.close()

    def equal(self, row: Row) -> tuple[int, int] | None:
        """Answers equal to the plain ones of the same engine one at a time, and answers compared."""
        name, _, _, kind = row
        kinds = ("copy", "open") if kind == "mixed" else (kind,)
        plain = {
            prompt: tokens
            for each in kinds
            for prompt, tokens in self.figures.get((name, "plain", 1, each), Figures()).answers.items()
        }
        mine = self.figures[row].answers
        pairs = [(mine[prompt], plain[prompt]) for prompt in mine if prompt in plain and mine[prompt]]
        same = sum(a[: len(b)] == b[: len(a)] for a, b in pairs)
        return (same, len(pairs)) if pairs else None


def cells_of(subject: Subject, streams: Sequence[int]) -> list[Cell]:
    alone = [Cell(subject, arm, 1, kind) for kind in ("copy", "open") for arm in subject.alone]
    return alone + [Cell(subject, arm, count, "mixed") for count in streams for arm in subject.company]


def chosen_cells(found: Sequence[Subject], streams: Sequence[int]) -> list[Cell]:
    """All engines' cells of one kind after each other, then the next kind."""
    cells = [cell for subject in found for cell in cells_of(subject, streams)]
    cells = [cell for cell in cells if "HTTP" not in cell.subject.name or cell.streams == max(streams)]
    return sorted(cells, key=lambda cell: (cell.streams, cell.kind))


def tokenised(checkpoint: Checkpoint, most: int) -> dict[str, dict[str, list[int]]]:
    """Kind -> id -> tokens; `most` of each kind."""
    template = ChatTemplate(checkpoint.chat_template, checkpoint.tokenizer, family=checkpoint.config.family)
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    found: dict[str, dict[str, list[int]]] = {}
    for kind in ("copy", "open"):
        for row in [row for row in rows if row["id"].startswith(f"{kind}-")][:most]:
            text = template.render(ChatPrompt(({"role": "user", "content": row["prompt"]},)))
            found.setdefault(kind, {})[row["id"]] = checkpoint.tokenizer.encode(text, special=True)
    found["mixed"] = {
        name: ids for pair in zip(*(found[k].items() for k in ("copy", "open")), strict=True) for name, ids in pair
    }
    return found


def prompts_for(cell: Cell, block: int, blocks: int, prompts: dict[str, dict[str, list[int]]]) -> dict[str, list[int]]:
    """Of a lone cell every `blocks`-th prompt, each once in a run; of streams the next so many."""
    names = list(prompts[cell.kind])
    if cell.streams == 1:
        mine = names[block::blocks][: 1 if cell.subject.slow else None]
    else:
        start = block * len(names) // blocks
        mine = [names[(start + place) % len(names)] for place in range(cell.streams)]
    return {name: prompts[cell.kind][name] for name in mine}


def show(measured: Measurement) -> list[dict[str, object]]:
    rows = []
    title = ("", 0)
    for row, figures in sorted(measured.figures.items(), key=lambda item: (item[0][2], item[0][3])):
        name, arm, streams, kind = row
        if (kind, streams) != title:
            title = (kind, streams)
            print(f"\n{kind}, one at a time" if streams == 1 else f"\n{streams} streams", "(tokens/s)")
        rates, equal = figures.rates, measured.equal(row)
        middle, low, high = statistics.median(rates), min(rates), max(rates)
        said = f"{equal[0]}/{equal[1]}" if equal else "-"
        print(f"  {name:<24} {arm:<14} {middle:8.1f}  [{low:.1f}, {high:.1f}]  equal {said}")
        rows.append(
            {
                "engine": name,
                "arm": arm,
                "streams": streams,
                "prompts": kind,
                "tokens_s": round(middle, 2),
                "least": round(low, 2),
                "most": round(high, 2),
                "blocks": [round(rate, 2) for rate in rates],
                "equal": equal,
            }
        )
    return rows


def judge(measured: Measurement) -> list[dict[str, object]]:
    print("\ngoals")
    found: list[dict[str, object]] = []
    for goal in goals():
        seen = ratios(goal, measured.figures)
        if not seen:
            print(f"  {goal.what:<40} not measured")
            found.append({"goal": goal.what, "least": goal.least, "ratio": None, "met": None})
            continue
        middle = statistics.median(seen)
        met = middle >= goal.least
        print(
            f"  {goal.what:<40} {middle:5.2f}x  [{min(seen):.2f}, {max(seen):.2f}]  >= {goal.least}: "
            f"{'met' if met else 'MISSED'}"
        )
        found.append(
            {
                "goal": goal.what,
                "least": goal.least,
                "ratio": round(middle, 3),
                "met": met,
                "spread": [round(min(seen), 3), round(max(seen), 3)],
            }
        )
    return found


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two blocks of few prompts and short answers; one at a time and 4 streams"
    )
    parser.add_argument("--only", help="engines whose names start so, comma-separated")
    parser.add_argument("--kinds", default="copy,open,mixed", help="of prompts; mixed ones are those of streams")
    parser.add_argument("--streams", help="at once, comma-separated, in place of 4,8,16")
    parser.add_argument("--blocks", type=int)
    parser.add_argument("--tokens", type=int, help="of an answer, at most")
    parser.add_argument("--minutes", type=float, default=60.0, help="what is not measured by then is left out")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--cache", type=Path, default=read_environment().cache / "peers")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> int:
    options = parse()
    blocks, tokens = options.blocks or (2 if options.quick else 3), options.tokens or (24 if options.quick else 48)
    streams = STREAMS[:1] if options.quick else STREAMS
    if options.streams:
        streams = tuple(int(count) for count in options.streams.split(","))
    threads = options.threads or read_hardware().threads
    path = fetch_model(DEFAULT_MODEL, read_environment())
    checkpoint = open_checkpoint(path)
    prompts = tokenised(checkpoint, 8 if options.quick else 20)
    found, missing = gather(Bench(path, options.cache, threads), options.only.split(",") if options.only else ())
    measured = Measurement(frozenset(checkpoint.tokenizer.eos_ids), tokens, missing)
    cells = [cell for cell in chosen_cells(found, streams) if cell.kind in options.kinds.split(",")]
    deadline_s = time.monotonic() + 60 * options.minutes
    try:
        measured.open(cells, next(iter(prompts["open"].values())))
        for block in range(blocks):
            for cell in cells if block % 2 == 0 else reversed(cells):
                if time.monotonic() > deadline_s:
                    break
                if block == 0 or cell.streams == 1 or not cell.subject.slow:
                    measured.run(cell, block, prompts_for(cell, block, blocks, prompts))
    finally:
        measured.close()
    device = read_hardware().device
    print(f"{device}, {threads} threads; {checkpoint.name}; {blocks} blocks, at most {tokens} tokens an answer")
    rows = show(measured)
    verdicts = judge(measured)
    for name, reason in measured.missing.items():
        print(f"missing: {name}: {reason}")
    if options.json:
        print(
            json.dumps(
                {
                    "benchmark": "peers",
                    "device": device,
                    "threads": threads,
                    "blocks": blocks,
                    "tokens": tokens,
                    "rows": rows,
                    "goals": verdicts,
                    "missing": measured.missing,
                }
            )
        )
    return int(any(verdict["met"] is False for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
