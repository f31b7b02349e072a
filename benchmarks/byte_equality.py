"""Is a speculative answer the plain one, token for token?  python benchmarks/byte_equality.py [--runner R] [--every N]

Every answer is compared with the plain one of the same request, decoded alone and cold: over temperatures 0 and 1,
drafters, draft lengths 0..12, one or sixteen at once, cold and warm prefix cache, and prompts fed in chunks. The
claim is made for batch-invariant runners; for others the noise floor (plain against plain in other company) is what
the difference has to be read against. `--every N` gives each setting every N-th prompt, shifted from setting to
setting, so that all prompts and all settings still meet.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.ask import ask
from decodeloop.engine.build import build_engine, choose_runner
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models import Checkpoint
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import Runner
from decodeloop.types import ChatPrompt, Request, SamplingParams

PROMPTS = Path(__file__).parent / "data" / "prompts.jsonl"
CHUNKED = 24  # tokens of a prompt in a step


@dataclass(frozen=True)
class Cell:
    drafter: str
    draft_len: int
    at_once: int
    warm: bool
    chunk: int

    def __str__(self) -> str:
        cache = "warm" if self.warm else "cold"
        return (
            f"{self.drafter:<12} draft_len {self.draft_len:2d}  {self.at_once:2d} at once  {cache}  chunk {self.chunk}"
        )


def cells(drafters: list[str], most: int) -> list[Cell]:
    """Every drafter at every depth; company, cache and chunking change from one to the next so that all pairs occur."""
    company = list(product((1, 16), (False, True), (128, CHUNKED)))
    depths = product(drafters, range(most + 1))
    return [Cell(d, k, *company[(i + i // len(company)) % len(company)]) for i, (d, k) in enumerate(depths)]


def requests(prompts: list[dict], checkpoint: Checkpoint, temperature: float, tokens: int) -> list[Request]:
    chat = checkpoint.chat_template is not None
    return [
        Request(
            id=f"{row['id']}@{temperature:g}",
            model="model",
            prompt=ChatPrompt(({"role": "user", "content": row["prompt"]},)) if chat else row["prompt"],
            params=SamplingParams(temperature=temperature, max_tokens=tokens),
            seed=1234,
        )
        for row in prompts
    ]


class Bench:
    """One runner, opened once; an engine a cell."""

    def __init__(self, checkpoint: Checkpoint, runner: Runner, base: EngineSettings, draft_model: str) -> None:
        self.checkpoint, self.runner, self.base, self.draft_model = checkpoint, runner, base, draft_model

    def answers(self, asked: list[Request], cell: Cell | None) -> dict[str, list[int]]:
        settings = replace(self.base, policy="off", drafters=())
        if cell is not None:
            settings = replace(
                self.base,
                policy="fixed",
                drafters=(cell.drafter,),
                draft_len=cell.draft_len,
                prefill_chunk=cell.chunk,
                max_step_tokens=256 if cell.chunk > CHUNKED else 16 * 13 + CHUNKED,
                drafter_options={"draft_model": {"model": self.draft_model}},
            )
        engine = build_engine(self.checkpoint, settings, clock=time.monotonic, runner=self.runner, name="model")
        engine.worker.start()
        try:
            at_once = 1 if cell is None else cell.at_once
            if cell is not None and cell.warm:
                ask(engine, [replace(r, params=SamplingParams(max_tokens=1)) for r in asked], at_once=at_once)
            got = ask(engine, asked, at_once=at_once)
        finally:
            engine.close(1.0)
        for answer in got:
            if answer.error is not None:
                raise RuntimeError(f"{answer.request.id}: {answer.error}")
        self.accepted = sum(answer.usage.accepted for answer in got if answer.usage)
        self.drafted = sum(answer.usage.drafted for answer in got if answer.usage)
        return {answer.request.id: answer.token_ids[0] for answer in got}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runner", default="torch", help="torch (fixed-shape mode) or native")
    parser.add_argument("--ordinary", action="store_true", help="torch's ordinary mode: measures the noise floor only")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--drafters", default="ngram,suffix,draft_model")
    parser.add_argument("--draft-model", default="int4")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=24)
    parser.add_argument("--max-draft-len", type=int, default=12)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="settings that an interrupted run has done")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    checkpoint = open_model(options.model, read_environment())
    fixed_shape = options.runner == "torch" and not options.ordinary
    settings = EngineSettings(
        runner=options.runner,
        fixed_shape=fixed_shape,
        threads=options.threads,
        max_context=2048,
        kv_memory_mb=2048,
        max_sequences=16,
    )
    bench = Bench(checkpoint, choose_runner(checkpoint, settings).runner, settings, options.draft_model)
    prompts = [json.loads(line) for line in PROMPTS.read_text().splitlines()][: options.prompts]
    asked = [r for t in (0.0, 1.0) for r in requests(prompts, checkpoint, t, options.tokens)]
    info = bench.runner.info
    print(f"{read_hardware().device}; {info.name} {info.weight_format}, batch-invariant {info.batch_invariant}")
    grid = list(enumerate(cells(options.drafters.split(","), options.max_draft_len)))[options.skip :]
    if options.ordinary:
        grid = [(0, Cell("ngram", 0, 16, warm=False, chunk=128))]
    shares = [[r for i, r in enumerate(asked) if (i + place) % options.every == 0] for place, _ in grid]
    needed = {request.id for share in shares for request in share}
    started = time.monotonic()
    plain = bench.answers([request for request in asked if request.id in needed], None)
    print(f"{len(plain)} plain answers, alone and cold: {time.monotonic() - started:.0f} s", flush=True)

    equal = total = 0
    for (_, cell), chosen in zip(grid, shares, strict=True):
        started = time.monotonic()
        got = bench.answers(chosen, cell)
        same = sum(tokens == plain[name] for name, tokens in got.items())
        equal, total = equal + same, total + len(got)
        rate = f"{bench.accepted / bench.drafted:.2f} of drafts accepted" if bench.drafted else ""
        print(f"{cell}: {same}/{len(got)} equal  {time.monotonic() - started:5.0f} s  {rate}", flush=True)
        if options.ordinary:
            report_flips(plain, got)
    print(f"equal: {equal} of {total}")
    if options.json:
        print(json.dumps({"equal": equal, "total": total, "cells": len(grid), "runner": info.name}))


def report_flips(plain: dict[str, list[int]], got: dict[str, list[int]]) -> None:
    """The noise floor: at how many positions did the first differing token come, of all until then."""
    compared = flips = 0
    for name, tokens in got.items():
        pairs = list(zip(plain[name], tokens, strict=False))
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        compared += len(pairs) if first is None else first + 1
        flips += first is not None
    print(
        f"noise floor, plain alone against plain among 16: {flips} flips in {compared} tokens ({flips / compared:.2e})"
    )


if __name__ == "__main__":
    main()
