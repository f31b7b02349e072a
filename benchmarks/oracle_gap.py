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
from collections.abc import Sequence
from pathlib import Path

from closed_loop import Arms

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.intake import Prepared
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.acceptance import Draft, History, Texts
from decodeloop.evaluation.foresight import Foresight
from decodeloop.evaluation.oracle import Cell, cell_of, gap
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.rules import Off
from decodeloop.evaluation.trust import calibrated
from decodeloop.evaluation.workload import Arrival, read_prompts
from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.speculation import Drafter, DrafterSetup, DraftRequest
from decodeloop.speculation.drafters import drafters
from decodeloop.types import ChatPrompt, Request, RequestClass, SamplingParams

PROMPTS = Path(__file__).parent / "data" / "classes.jsonl"
HOT = {RequestClass.CREATIVE_WRITING: 1.0, RequestClass.GENERAL_CHAT: 0.7}
DEPTH = 12
INTERFERENCE = 0.05  # the adaptive policy's own
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


def history(drafter: Drafter, number: int, prepared: Prepared, answer: Sequence[int]) -> History:
    """What the drafter says when i tokens of the answer are out, for every i, and how much of it comes true."""
    drafts = []
    for i in range(len(answer)):
        state = prepared.state.fork()
        for token in answer[:i]:
            state.advance(token)
        tokens = [*prepared.tokens, *answer[:i]]
        asked = DraftRequest(number, tokens, DEPTH, state, None, organization=f"{number}")  # type: ignore[arg-type]
        draft = drafter.propose([asked]).drafts[0]
        right = next((k for k, (a, b) in enumerate(zip(draft.tokens, answer[i:], strict=False)) if a != b), None)
        matched = min(len(draft.tokens), len(answer) - i) if right is None else right
        drafts.append(Draft(len(draft.tokens), matched, draft.confidence))
    drafter.finish(number, [*prepared.tokens, *answer], f"{number}")
    return History(prepared.request.request_class, drafts)


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
    surface = arms._costs(arms.runner, loop.engine.memory)
    try:
        prepared = prepare(arms, options.per_class, options.tokens)
        served = loop.serve(itertools.cycle(prepared), 4, lambda s: len(s.answers) >= len(prepared) + 4)
        alone = loop.serve(itertools.cycle(prepared), 1, lambda s: s.tokens >= 200)
    finally:
        arms.close()
    cost, trust = calibrated(surface, [*served.records, *alone.records], source="at start")
    print(f"step times: {trust.said()}", flush=True)
    answers = {answer.request_id: answer.token_ids for answer in served.answers}
    drafter = open_drafter(options.drafter, arms.runner.info.vocab_size)
    histories, arrivals = [], []
    for each in prepared:
        said = answers.get(each.request.id, ())
        if len(said) > 1:
            arrival = Arrival(0.0, len(each.tokens), len(said), each.request.request_class, text=len(histories))
            histories.append(history(drafter, len(histories), each, said))
            arrivals.append(arrival)
    foresight, texts = Foresight(histories), Texts(histories)

    def policy():
        own = policies.load(options.policy)(PolicySettings(DEPTH), CostSurface.from_json(cost.to_json()))
        return PolicyRule(own, cost, max_draft_len=DEPTH)

    classes = [*dict.fromkeys(str(arrival.request_class) for arrival in arrivals), "mixed"]
    cells = []
    print(f"{'class':<18} {'load':>4}  {'plain':>7} {'policy':>7} {'causal':>7} {'oracle':>7}  information  regret")
    started_s = time.perf_counter()
    for load in [int(n) for n in options.loads.split(",")]:
        for name in classes:
            cell = Cell(texts, cell_of(arrivals, name), cost, load, options.seconds, options.seconds)
            found = gap(
                cell,
                plain=Off,
                policy=policy,
                foresight=foresight,
                interference=INTERFERENCE,
                drafting_ms=cost.free_draft_ms(load),
            )
            cells.append({"class": name, "load": load, **found.to_json()})
            print(
                f"{name:<18} {load:4d}  {found.plain:7.1f} {found.policy:7.1f} {found.informed:7.1f} "
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
