"""What a clairvoyant would win, and where the rest is lost:  python benchmarks/oracle_gap.py [--json]

Answers of five classes are decoded once on the native engine; the drafter then says at every position of every answer
what it would have proposed there, which is compared with the answer. On the cost surface measured at start, requests
are served at each load by a clairvoyant oracle, by the best rule that sees what policies see, and by the adaptive
policy as it is (learning as it goes). information: the share of the oracle's rate that nobody can have beforehand.
regret: the share of the best causal rate that the policy leaves. Goal: regret within 15 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import defaultdict
from pathlib import Path

from closed_loop import Arms

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.intake import Prepared
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.bound import MIXED, Judged, bounds, classes_of
from decodeloop.evaluation.counterfactual import Text
from decodeloop.evaluation.trust import calibrated
from decodeloop.evaluation.workload import read_prompts
from decodeloop.speculation import Drafter, DrafterSetup
from decodeloop.speculation.drafters import drafters
from decodeloop.types import ChatPrompt, Request, RequestClass, SamplingParams

PROMPTS = Path(__file__).parent / "data" / "classes.jsonl"
HOT = {RequestClass.CREATIVE_WRITING: 1.0, RequestClass.GENERAL_CHAT: 0.7}
DEPTH = 12
GOAL = 0.15


def prepare(arms: Arms, per_class: int, tokens: int) -> list[Prepared]:
    taken: dict[RequestClass, int] = defaultdict(int)
    prepared = []
    for prompt in read_prompts(PROMPTS.read_text(encoding="utf-8").splitlines()):
        if taken[prompt.request_class] < per_class:
            taken[prompt.request_class] += 1
            request = Request(
                id=prompt.id,
                model="model",
                prompt=ChatPrompt(({"role": "user", "content": prompt.text},)),
                params=SamplingParams(temperature=HOT.get(prompt.request_class, 0.0), max_tokens=tokens),
                seed=1,
                request_class=prompt.request_class,
            )
            prepared.append(arms.loops["off"].engine.intake.prepare(request))
    return prepared


def open_drafter(name: str, vocab_size: int) -> Drafter:
    return drafters.load(name)(DrafterSetup(vocab_size, 2048, 4, DEPTH))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--drafter", default="suffix", choices=("ngram", "suffix"))
    parser.add_argument("--policy", default="adaptive")
    parser.add_argument("--loads", default="1,4,16")
    parser.add_argument("--per-class", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="simulated, of each cell; as much again is the ramp"
    )
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    engine = EngineSettings(drafters=("ngram",), max_context=1024, max_sequences=32, prefix_caching=False)
    arms = Arms(open_model(options.model, read_environment()), engine)
    loop = arms.open("off", "off", shadow_len=DEPTH)
    print(f"{read_hardware().device}; {arms.runner.info.name} {arms.runner.info.weight_format}; {options.drafter}")
    surface = arms.costs()
    try:
        prepared = prepare(arms, options.per_class, options.tokens)
        served = loop.serve(itertools.cycle(prepared), 4, lambda s: len(s.answers) >= len(prepared) + 4)
        alone = loop.serve(itertools.cycle(prepared), 1, lambda s: s.tokens >= 200)
    finally:
        arms.close()
    cost, trust = calibrated(surface, [*served.records, *alone.records], source="at start")
    print(f"step times: {trust.said()}", flush=True)
    answers = {answer.request_id: answer.token_ids for answer in served.answers}
    said = [(each, answers.get(each.request.id, ())) for each in prepared]
    texts = [Text(e.request.request_class, e.tokens, answer, e.state) for e, answer in said if len(answer) > 1]
    names = [*map(str, classes_of(texts)), MIXED]
    wanted = [(name, load) for load in map(int, options.loads.split(",")) for name in names]
    judged = Judged(policy=options.policy, max_draft_len=DEPTH, seconds=options.seconds)
    drafter = open_drafter(options.drafter, arms.runner.info.vocab_size)
    cells = []
    print(f"{'class':<18} {'load':>4}  {'plain':>7} {'policy':>7} {'causal':>7} {'oracle':>7}  information  regret")
    started_s = time.perf_counter()
    for each in bounds(texts, drafter, cost, judged, wanted):
        found = each.gap
        cells.append({"class": each.name, "load": each.load, **found.to_json()})
        print(
            f"{each.name:<18} {each.load:4d}  {found.plain:7.1f} {found.policy:7.1f} {found.informed:7.1f} "
            f"{found.oracle:7.1f}  {found.information:11.1%}  {found.regret:6.1%}",
            flush=True,
        )
    worst = max(cells, key=lambda cell: cell["regret"])
    within = sum(cell["regret"] <= GOAL for cell in cells)
    at_worst = f"{worst['regret']:.1%} ({worst['class']}, load {worst['load']})"
    print(f"regret within {GOAL:.0%} in {within} of {len(cells)} cells, at worst {at_worst}")
    print(f"{time.perf_counter() - started_s:.0f} s of simulation")
    if options.json:
        print(json.dumps({"cells": cells, "worst": worst, "steps": trust.to_json()}))


if __name__ == "__main__":
    main()
