"""Where the engine's time goes, step by step:  python benchmarks/step_parts.py [MODEL] [--json]

The whole engine decodes a fixed number of requests at once, at temperature 0 and 1, plainly and as the adaptive policy
decides. Per step, in ms: `draft`, `verify` (the model), `sample` (the draw and the verdict) and `overhead` (planning,
packing, committing, observing) as its record has them; `between` is what passes from a record to the next step's
beginning: handing answers to their readers, observers, reading requests. Medians over steps without a prompt in them,
with the mean of the whole; settings take turns.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.ask import ask
from decodeloop.engine.build import EmbeddedEngine, build_engine, choose_runner
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.memory import MemoryPlan
from decodeloop.engine.profile import measure as cost_surface
from decodeloop.engine.settings import EngineSettings
from decodeloop.speculation.forward import Runner
from decodeloop.types import ChatPrompt, CostModel, Request, SamplingParams, Speculation, SpeculationMode, StepRecord

PROMPTS = Path(__file__).parent / "data" / "prompts.jsonl"
PARTS = ("draft", "verify", "sample", "overhead", "between")


@dataclass(frozen=True, slots=True)
class Setting:
    streams: int
    temperature: float
    speculation: SpeculationMode


@dataclass(frozen=True, slots=True)
class Timing:
    """ms a step: medians by part, mean of everything. tokens_per_s: of all streams together."""

    streams: int
    temperature: float
    speculation: str
    steps: int
    parts_ms: dict[str, float]
    step_ms: float
    tokens_per_s: float

    @classmethod
    def of(cls, setting: Setting, records: Sequence[StepRecord]) -> Timing:
        steps = [
            (record, 1e3 * (following.at_s - record.at_s))
            for record, following in itertools.pairwise(records)
            if len(record.rows) == len(following.rows) == setting.streams
            and not any(row.prefill_tokens for row in (*record.rows, *following.rows))
        ]
        parts = {
            "draft": [record.draft_ms for record, _ in steps],
            "verify": [record.verify_ms for record, _ in steps],
            "sample": [record.sample_ms for record, _ in steps],
            "overhead": [record.overhead_ms for record, _ in steps],
            "between": [max(0.0, whole - record.step_ms) for record, whole in steps],
        }
        whole_ms = sum(whole for _, whole in steps)
        return cls(
            streams=setting.streams,
            temperature=setting.temperature,
            speculation=setting.speculation.value,
            steps=len(steps),
            parts_ms={name: round(median(values), 3) for name, values in parts.items()},
            step_ms=round(fmean(whole for _, whole in steps), 3),
            tokens_per_s=round(1e3 * sum(row.emitted for record, _ in steps for row in record.rows) / whole_ms, 1),
        )


def open_engine(options: argparse.Namespace, records: list[StepRecord]) -> EmbeddedEngine:
    checkpoint = open_model(options.model, read_environment())
    settings = EngineSettings(
        runner=options.runner,
        policy="adaptive",
        drafters=("ngram", "suffix"),
        max_context=1024,
        max_sequences=max(options.streams),
        prefix_caching=False,
    )
    runner = choose_runner(checkpoint, settings).runner

    def costs(runner: Runner, memory: MemoryPlan) -> CostModel:
        blocks, context = memory.kv_blocks, memory.max_context
        clock = time.perf_counter
        return cost_surface(runner, settings, kv_blocks=blocks, max_context=context, clock=clock, budget_s=5.0)

    engine = build_engine(
        checkpoint,
        settings,
        clock=time.perf_counter,
        runner=runner,
        name="model",
        measure=costs,
        observers=(records.append,),
    )
    engine.worker.start()
    return engine


def decode(engine: EmbeddedEngine, setting: Setting, prompts: Sequence[dict], tokens: int) -> None:
    requests = [
        Request(
            id=row["id"],
            model="model",
            prompt=ChatPrompt(({"role": "user", "content": row["prompt"]},)),
            params=SamplingParams(temperature=setting.temperature, max_tokens=tokens, ignore_eos=True),
            seed=1,
            speculation=Speculation(setting.speculation),
        )
        for row in prompts[: setting.streams]
    ]
    ask(engine, requests, at_once=setting.streams)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="smollm2")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--streams", type=lambda text: [int(n) for n in text.split(",")], default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    prompts = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    prompts = [row for row in prompts if row["id"].startswith("open")]
    records: list[StepRecord] = []
    engine = open_engine(options, records)
    settings = [
        Setting(streams, temperature, mode)
        for streams in options.streams
        for temperature in (0.0, 1.0)
        for mode in (SpeculationMode.OFF, SpeculationMode.AUTO)
    ]
    taken: dict[Setting, list[StepRecord]] = {setting: [] for setting in settings}
    for _ in range(options.rounds):
        for setting in settings:
            records.clear()
            decode(engine, setting, prompts, options.tokens)
            taken[setting] += records
    engine.close(1.0)
    timings = [Timing.of(setting, seen) for setting, seen in taken.items()]
    print(f"{read_hardware().device}; {engine.engine.runner.info.name} {engine.engine.runner.info.weight_format}")
    print(f"{'streams':>7} {'temp':>5} {'mode':>5} {'steps':>6} " + " ".join(f"{p:>9}" for p in PARTS), end="")
    print(f" {'step ms':>9} {'tokens/s':>9}")
    for t in timings:
        parts = " ".join(f"{t.parts_ms[name]:9.3f}" for name in PARTS)
        print(f"{t.streams:7} {t.temperature:5.1f} {t.speculation:>5} {t.steps:6} {parts} ", end="")
        print(f"{t.step_ms:9.3f} {t.tokens_per_s:9.1f}")
    if options.json:
        values = {"benchmark": "step_parts", "device": read_hardware().device}
        print(json.dumps({**values, "timings": [asdict(t) for t in timings]}))


if __name__ == "__main__":
    main()
