"""How far the fleet simulator is from our own engine:  python benchmarks/simulator_error.py [--loads 1,4,16] [--json]

Measured: a closed loop of requests of five classes on the native engine (n-gram drafts, no prefix cache), plainly, with
fixed drafts and with the adaptive policy, in mirrored order. Simulated: the same requests (their lengths), step times
from the cost surface measured at start and taught by the steps of a run of its own at that load, drafts from that run's
record. No simulated arm has seen its own measurement.

Per arm and load: tokens a second and TPOT p95, measured and simulated. Goals: the mean absolute error of throughput
within 10 %, of TPOT p95 within 15 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from closed_loop import Arms, Served

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.intake import Prepared
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.acceptance import Recorded
from decodeloop.evaluation.fleet import Limits
from decodeloop.evaluation.histories import histories
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.rules import Fixed, Off
from decodeloop.evaluation.simulate import Fleet, simulate_closed
from decodeloop.evaluation.trust import calibrated, error, with_pauses
from decodeloop.evaluation.workload import Arrival, read_prompts
from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.types import ChatPrompt, Request, RequestClass, SamplingParams, StepRecord

PROMPTS = Path(__file__).parent / "data" / "classes.jsonl"
HOT = {RequestClass.CREATIVE_WRITING: 1.0, RequestClass.GENERAL_CHAT: 0.7}
DEPTH = 12
FEWEST = 8  # requests of a cell
GENERATIONS = 2  # of requests, in a turn at any load
LEAST = 8  # tokens after the first: shorter answers have no pace


@dataclass(frozen=True)
class Arm:
    name: str
    policy: str
    draft_len: int = 4


ARMS = (Arm("off", "off"), Arm("fixed 4", "fixed"), Arm("adaptive", "adaptive"))
RECORDING = Arm("record", "fixed", DEPTH)


def settings() -> EngineSettings:
    return EngineSettings(
        drafters=("ngram",), max_context=1024, max_sequences=32, max_draft_len=DEPTH, prefix_caching=False
    )


def stream(prepared: Sequence[Prepared], start: int) -> Iterator[Prepared]:
    return itertools.islice(itertools.cycle(prepared), start, None)


def requests(arms: Arms, per_class: int, tokens: int) -> list[Prepared]:
    """In turn by class."""
    own: dict[RequestClass, list[Prepared]] = defaultdict(list)
    intake = arms.loops[RECORDING.name].engine.intake
    for prompt in read_prompts(PROMPTS.read_text(encoding="utf-8").splitlines()):
        if len(own[prompt.request_class]) < per_class:
            request = Request(
                id=prompt.id,
                model="model",
                prompt=ChatPrompt(({"role": "user", "content": prompt.text},)),
                params=SamplingParams(temperature=HOT.get(prompt.request_class, 0.0), max_tokens=tokens),
                seed=1,
                request_class=prompt.request_class,
            )
            own[prompt.request_class].append(intake.prepare(request))
    return [prepared for row in itertools.zip_longest(*own.values()) for prepared in row if prepared is not None]


def paces(served: Sequence[Served]) -> list[float]:
    """Of requests that began and ended within a turn: ms a token after the first, waiting for others included."""
    found = []
    for turn in served:
        first: dict[str, float] = {}
        last: dict[str, tuple[float, int]] = {}
        for record in turn.records:
            end_s = record.at_s + record.step_ms / 1e3
            for row in record.rows:
                if row.prefill_tokens and row.emitted:
                    first[row.request_id] = end_s
                elif row.request_id in first and row.emitted:
                    last[row.request_id] = end_s, last.get(row.request_id, (0.0, 0))[1] + row.emitted
        open_ids = {row.request_id for row in turn.records[-1].rows}
        found += [
            1e3 * (end_s - first[name]) / tokens
            for name, (end_s, tokens) in last.items()
            if name not in open_ids and tokens >= LEAST
        ]
    return found


def _renamed(record: StepRecord, turn: int) -> StepRecord:
    """Requests of different turns are different ones."""
    return replace(record, rows=tuple(replace(row, request_id=f"{turn}/{row.request_id}") for row in record.rows))


def arrivals(records: Sequence[StepRecord]) -> list[Arrival]:
    """The requests of the recording as the simulator takes them: lengths and class, the k-th with the k-th history."""
    sizes: dict[str, list[int]] = {}
    classes: dict[str, RequestClass] = {}
    for record in records:
        for row in record.rows:
            own = sizes.setdefault(row.request_id, [0, 0])
            own[0] += row.prefill_tokens
            own[1] += row.emitted
            classes[row.request_id] = row.request_class
    found = histories(records, max_draft_len=DEPTH)
    names = list(dict.fromkeys(row.request_id for r in records for row in r.rows if not row.prefill_tokens))
    assert len(found) == len(names)
    last = {row.request_id.partition("/")[0]: record for record in records for row in record.rows}
    cut = {row.request_id for record in last.values() for row in record.rows}
    return [
        Arrival(0.0, sizes[name][0], sizes[name][1], classes[name], text=i)
        for i, name in enumerate(names)
        if sizes[name][0] and sizes[name][1] > LEAST and name not in cut
    ]


def simulated(arm: Arm, cost: CostSurface, records: Sequence[StepRecord], load: int) -> tuple[float, list[float]]:
    """Tokens a second, and the requests' ms a token."""
    acceptance = Recorded(histories(records, max_draft_len=DEPTH))
    clients = arrivals(records)
    following = itertools.cycle(clients)

    def rule():
        if arm.policy == "off":
            return Off()
        if arm.policy == "fixed":
            return Fixed(cost, arm.draft_len, paid=False)
        own = policies.load(arm.policy)(PolicySettings(DEPTH), CostSurface.from_json(cost.to_json()))
        return PolicyRule(own, cost, max_draft_len=DEPTH)

    limits = Limits(settings().max_sequences, settings().prefill_chunk, settings().max_step_tokens)
    fleet = Fleet(replicas=1, cost=cost, rule=rule, acceptance=acceptance, limits=limits)
    seconds = 25.0 if load == 1 else 12.0
    first = [next(following) for _ in range(load)]
    found, served = simulate_closed(fleet, first, seconds=seconds, ramp_s=2.0, following=following)
    return found.tokens_per_s, [s.tpot_ms for s in served if s.done and s.arrival.output_tokens > LEAST]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--loads", default="1,4,16")
    parser.add_argument("--per-class", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--turns", type=int, default=4, help="of every arm at a load, in mirrored order")
    parser.add_argument("--turn-tokens", type=int, default=400, help="of an arm at a load, in each turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    loads = [int(load) for load in options.loads.split(",")]

    arms = Arms(open_model(options.model, read_environment()), settings())
    loops = {a.name: arms.open(a.name, a.policy, draft_len=a.draft_len) for a in (RECORDING, *ARMS)}
    print(f"{read_hardware().device}; {arms.runner.info.name} {arms.runner.info.weight_format}", flush=True)
    prepared = requests(arms, options.per_class, options.tokens)
    recorded: dict[int, list[StepRecord]] = defaultdict(list)
    measured: dict[tuple[str, int], list[Served]] = defaultdict(list)
    try:
        for load in loads:
            enough = max(options.turn_tokens, GENERATIONS * load * options.tokens)
            for turn in range(options.turns):
                order = (RECORDING, *ARMS)
                for arm in order if turn % 2 == 0 else order[::-1]:
                    served = loops[arm.name].serve(stream(prepared, 7 * turn), load, lambda s, n=enough: s.tokens >= n)
                    if arm is RECORDING:
                        recorded[load] += [_renamed(record, turn) for record in served.records]
                    else:
                        measured[arm.name, load].append(served)
            print(f"measured at load {load}", flush=True)
    finally:
        arms.close()

    taught = {load: calibrated(arms.costs(), records, source="at start") for load, records in recorded.items()}
    for load, (_, trust) in taught.items():
        print(f"load {load}: step times {trust.said()}")
    rows = []
    said = f"{'simulated':>9} {'error':>7}"
    print(f"{'arm':<10} {'load':>4}  {'tokens/s':>9} {said}  {'TPOT p95':>9} {said}")
    for (name, load), served in measured.items():
        arm = next(a for a in ARMS if a.name == name)
        rate = sum(turn.tokens for turn in served) / sum(turn.seconds for turn in served)
        own_paces = paces(served)
        if len(own_paces) < FEWEST:
            raise RuntimeError(f"{name} at load {load}: {len(own_paces)} requests are too few; raise --turn-tokens")
        tpot = float(np.quantile(own_paces, 0.95))
        steps = error(taught[load][0], [record for turn in served for record in with_pauses(turn.records)])
        idle = 1.0 - sum(r.step_ms for turn in served for r in turn.records) / sum(1e3 * t.seconds for t in served)
        said_rate, said_paces = simulated(arm, taught[load][0], recorded[load], load)
        said_tpot = float(np.quantile(said_paces, 0.95))
        rows.append(
            {
                "arm": name,
                "load": load,
                "tokens_per_s": [round(rate, 1), round(said_rate, 1)],
                "tpot_p95_ms": [round(tpot, 2), round(said_tpot, 2)],
                "requests": len(own_paces),
                "step_times": steps.total,
                "idle": round(idle, 4),
            }
        )
        print(
            f"{name:<10} {load:4d}  {rate:9.1f} {said_rate:9.1f} {said_rate / rate - 1.0:+7.1%}  {tpot:9.2f} "
            f"{said_tpot:9.2f} {said_tpot / tpot - 1.0:+7.1%}  steps {steps.total:+7.1%}, idle {idle:5.1%}",
            flush=True,
        )
    errors = {
        key: float(np.mean([abs(row[key][1] / row[key][0] - 1.0) for row in rows]))
        for key in ("tokens_per_s", "tpot_p95_ms")
    }
    print(f"mean absolute error: throughput {errors['tokens_per_s']:.1%}, TPOT p95 {errors['tpot_p95_ms']:.1%}")
    if options.json:
        print(json.dumps({"cells": rows, "errors": errors, "steps": [t.to_json() for _, t in taught.values()]}))


if __name__ == "__main__":
    main()
