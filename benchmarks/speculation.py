"""What speculation earns alone, per class:  python benchmarks/speculation.py [--runner R] [--json]

Plain decoding against fixed drafts and the adaptive policy, one request at a time, the arms interleaved prompt by
prompt in ABBA order; per prompt the ratio of decode speeds (tokens a second after the first), as a geometric mean with
a 95 % t interval over prompts. Each arm is an organization of its own, so that no drafter remembers another arm's
answer. The answers must be the same in every arm on a batch-invariant runner, and are compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from dataclasses import dataclass, replace
from pathlib import Path

from scipy import stats

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.ask import ask
from decodeloop.engine.build import build_engine, choose_runner
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.memory import MemoryPlan
from decodeloop.engine.profile import measure as cost_surface
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.workload import repeated
from decodeloop.speculation.forward import Runner
from decodeloop.types import ChatPrompt, CostModel, Identity, Request, SamplingParams, Speculation, SpeculationMode

PROMPTS = Path(__file__).parent / "data" / "prompts.jsonl"


@dataclass(frozen=True)
class Arm:
    name: str
    speculation: Speculation


def arms(draft_lens: list[int], drafters: list[str]) -> list[Arm]:
    forced = [
        Arm(f"{drafter} {k}", Speculation(SpeculationMode.FORCE, k, drafter))
        for drafter in drafters
        for k in draft_lens
    ]
    return [Arm("plain", Speculation(SpeculationMode.OFF)), *forced, Arm("adaptive", Speculation())]


def interval(ratios: list[float]) -> tuple[float, float, float]:
    """Geometric mean and its 95 % t interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean, error = statistics.fmean(logs), statistics.stdev(logs) / math.sqrt(len(logs))
    reach = float(stats.t.ppf(0.975, len(logs) - 1)) * error
    return math.exp(mean), math.exp(mean - reach), math.exp(mean + reach)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--drafters", default="ngram,suffix")
    parser.add_argument("--draft-model", help="adds the drafter draft_model: layers:N, int4, ...")
    parser.add_argument("--draft-lens", default="2,4,8")
    parser.add_argument("--per-class", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    checkpoint = open_model(options.model, read_environment())
    drafters = options.drafters.split(",")
    if options.draft_model:
        drafters.append("draft_model")
    settings = EngineSettings(
        runner=options.runner,
        policy="adaptive",
        drafters=tuple(drafters),
        drafter_options={"draft_model": {"model": options.draft_model}},
        max_context=2048,
        max_sequences=1,
        prefix_caching=False,
    )
    runner = choose_runner(checkpoint, settings).runner

    def costs(runner: Runner, memory: MemoryPlan) -> CostModel:
        blocks, context = memory.kv_blocks, memory.max_context
        clock = time.perf_counter
        return cost_surface(runner, settings, kv_blocks=blocks, max_context=context, clock=clock, budget_s=10.0)

    engine = build_engine(checkpoint, settings, clock=time.monotonic, runner=runner, name="model", measure=costs)
    engine.worker.start()
    rows = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    groups = {name: [r for r in rows if r["id"].startswith(name)][: options.per_class] for name in ("copy", "open")}
    chosen = arms([int(k) for k in options.draft_lens.split(",")], drafters)
    print(
        f"{read_hardware().device}; {runner.info.name} {runner.info.weight_format}; {options.tokens} tokens an answer"
    )
    results = []
    try:
        for group, prompts in groups.items():
            results += measure(engine, group, prompts, chosen, options.tokens)
    finally:
        engine.close(1.0)
    if options.json:
        info = runner.info
        found = {
            "device": read_hardware().device,
            "runner": info.name,
            "format": info.weight_format,
            "results": results,
        }
        print(json.dumps(found))


def measure(engine, group: str, prompts: list[dict], chosen: list[Arm], tokens: int) -> list[dict]:
    speeds: dict[str, list[float]] = {arm.name: [] for arm in chosen}
    unequal: dict[str, int] = dict.fromkeys(speeds, 0)
    looping = 0
    for i, row in enumerate(prompts):
        answers = {}
        request = Request(
            id=row["id"],
            model="model",
            prompt=ChatPrompt(({"role": "user", "content": row["prompt"]},)),
            params=SamplingParams(temperature=0.0, max_tokens=tokens),
            seed=1,
        )
        for arm in chosen if i % 2 == 0 else reversed(chosen):
            (answer,) = ask(
                engine, [replace(request, speculation=arm.speculation, identity=Identity(arm.name))], at_once=1
            )
            report = answer.report
            decode_s = (report.draft_ms + report.verify_ms + report.sample_ms + report.overhead_ms) / 1e3
            speeds[arm.name].append((answer.usage.completion - 1) / decode_s if answer.usage.completion > 1 else 0.0)
            answers[arm.name] = answer.token_ids[0]
        looping += repeated(answers["plain"])
        for name, said in answers.items():
            unequal[name] += said != answers["plain"]
    plain = speeds["plain"]
    print(f"{group}: {len(prompts)} prompts, plain {statistics.median(plain):.1f} tokens/s (median), {looping} loop")
    results = []
    for arm in chosen[1:]:
        ratios = [mine / theirs for mine, theirs in zip(speeds[arm.name], plain, strict=True) if mine and theirs]
        ratio, low, high = interval(ratios)
        results.append({"class": group, "arm": arm.name, "ratio": ratio, "low": low, "high": high})
        print(
            f"  {arm.name:<14} {ratio:5.2f}x  [{low:.2f}, {high:.2f}]  unequal answers {unequal[arm.name]}", flush=True
        )
    return results


if __name__ == "__main__":
    main()
