"""How far the fleet simulator is from our own engine:  python benchmarks/simulator_error.py [--loads 1,4,16] [--json]

Measured: turns of a closed loop of requests of five classes on the native engine (n-gram drafts, no prefix cache),
plainly, with fixed drafts and with the adaptive policy, in mirrored order. Simulated: the same turns of the same
requests. How long answers are and how drafts fare is known from a run over all requests with long fixed drafts; step
times are the surface measured at start, taught by a recording's turns between the arms' and set to the pace the machine
had in each (it changes by half within seconds). No simulated arm has seen its own measurement.

Per arm and load: tokens a second and TPOT p95 of the requests that began and ended within a turn, measured and
simulated. Goals: the mean absolute error of throughput within 10 %, of TPOT p95 within 15 %. steps: how far the step
times alone are off, in all.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from closed_loop import Arms, Served

from decodeloop.cli.environment import read_environment
from decodeloop.cli.opening import open_model
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.intake import Prepared
from decodeloop.engine.settings import EngineSettings
from decodeloop.evaluation.acceptance import Recorded
from decodeloop.evaluation.fleet import Limits, Rule
from decodeloop.evaluation.histories import histories
from decodeloop.evaluation.policy_rule import PolicyRule
from decodeloop.evaluation.rules import Fixed, Off
from decodeloop.evaluation.simulate import Fleet, simulate_turns
from decodeloop.evaluation.trust import calibrated, keep_pace, predicted_ms, with_pauses
from decodeloop.evaluation.workload import Arrival, read_prompts
from decodeloop.policy import PolicySettings, policies
from decodeloop.policy.cost import CostSurface
from decodeloop.types import ChatPrompt, Request, RequestClass, SamplingParams, StepRecord

PROMPTS = Path(__file__).parent / "data" / "classes.jsonl"
HOT = {RequestClass.CREATIVE_WRITING: 1.0, RequestClass.GENERAL_CHAT: 0.7}
DEPTH = 12
FEWEST = 8  # requests of a cell
GENERATIONS = 3  # of requests, in a turn at any load
SHIFT = 7  # requests by which a turn begins later than the one before
KNOWN_AT = 4  # load at which every request is served once beforehand
LEAST = 8  # tokens after the first: shorter answers have no pace


T = TypeVar("T")


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


def stream(items: Sequence[T], start: int) -> Iterator[T]:
    return itertools.islice(itertools.cycle(items), start, None)


def prepare(arms: Arms, per_class: int, tokens: int) -> list[Prepared]:
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


def paces(served: Sequence[Served], lengths: Mapping[str, int]) -> list[float]:
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
        found += [
            1e3 * (end_s - first[name]) / tokens
            for name, (end_s, tokens) in last.items()
            if tokens + 1 == lengths[_prompt_of(name)] > LEAST
        ]
    return found


def _prompt_of(request_id: str) -> str:
    return request_id.partition("/")[2]


@dataclass(frozen=True)
class Requests:
    """As the simulator takes them: lengths and class in their order, and how their drafts fared. lengths: by id."""

    arrivals: Sequence[Arrival]
    acceptance: Recorded
    lengths: Mapping[str, int]


def known(prepared: Sequence[Prepared], served: Served) -> Requests:
    records = [
        replace(record, rows=tuple(replace(row, request_id=_prompt_of(row.request_id)) for row in record.rows))
        for record in served.records
    ]
    names = list(dict.fromkeys(row.request_id for r in records for row in r.rows if not row.prefill_tokens))
    found = histories(records, max_draft_len=DEPTH)
    if len(found) != len(names):
        raise RuntimeError("some request never had a draft, nor a drafter that was silent")
    lengths = {answer.request_id: len(answer.token_ids) for answer in served.answers}
    arrivals = [
        Arrival(0.0, len(p.tokens), lengths[p.request.id], p.request.request_class, text=names.index(p.request.id))
        for p in prepared
    ]
    return Requests(arrivals, Recorded(found), lengths)


@dataclass(frozen=True)
class Turns:
    """What the turns at a load have in common. recorded: the recording's steps, turn by turn."""

    load: int
    tokens: int
    recorded: Sequence[Sequence[StepRecord]]
    cost: CostSurface

    def at_pace(self, turn: int) -> CostSurface:
        """Step times at the machine's pace in that turn's recording."""
        keep_pace(self.cost, with_pauses(self.recorded[turn]))
        return self.cost


def simulated(arm: Arm, turns: Turns, requests: Requests) -> tuple[float, list[float]]:
    """Tokens a second, and the requests' ms a token."""
    cost = turns.cost

    def rule() -> Rule:
        if arm.policy == "off":
            return Off()
        if arm.policy == "fixed":
            return Fixed(cost, arm.draft_len, paid=False)
        own = policies.load(arm.policy)(PolicySettings(DEPTH), CostSurface.from_json(cost.to_json()))
        return PolicyRule(own, cost, max_draft_len=DEPTH)

    def streams() -> Iterator[Iterator[Arrival]]:
        for turn in range(len(turns.recorded)):
            turns.at_pace(turn)
            yield stream(requests.arrivals, SHIFT * turn)

    limits = Limits(settings().max_sequences, settings().prefill_chunk, settings().max_step_tokens)
    fleet = Fleet(replicas=1, cost=cost, rule=rule, acceptance=requests.acceptance, limits=limits)
    tokens, seconds, found = 0.0, 0.0, []
    for turn, served in simulate_turns(fleet, streams(), load=turns.load, tokens=turns.tokens):
        tokens += turn.tokens_per_s * turn.seconds
        seconds += turn.seconds
        found += [request.tpot_ms for request in served if request.arrival.output_tokens > LEAST]
    return tokens / seconds, found


def measure(
    arms: Arms, prepared: Sequence[Prepared], load: int, tokens: int, turns: int
) -> tuple[list[Served], dict[str, list[Served]]]:
    """The recording's turns, and the arms'."""
    recorded: list[Served] = []
    measured: dict[str, list[Served]] = {arm.name: [] for arm in ARMS}
    for turn in range(turns):
        order = (RECORDING, *ARMS)
        for arm in order if turn % 2 == 0 else order[::-1]:
            loop = arms.loops[arm.name]
            served = loop.serve(stream(prepared, SHIFT * turn), load, lambda s: s.tokens >= tokens)
            (recorded if arm is RECORDING else measured[arm.name]).append(served)
    return recorded, measured


def compared(arm: Arm, served: Sequence[Served], turns: Turns, requests: Requests) -> dict[str, Any]:
    """One arm at one load, measured and simulated."""
    rate = sum(turn.tokens for turn in served) / sum(turn.seconds for turn in served)
    own_paces = paces(served, requests.lengths)
    if len(own_paces) < FEWEST:
        raise RuntimeError(f"{arm.name} at load {turns.load}: {len(own_paces)} requests are too few; raise --turns")
    said_ms = taken_ms = 0.0
    for turn, each in enumerate(served):
        records, cost = with_pauses(each.records), turns.at_pace(turn)
        said_ms += sum(predicted_ms(cost, record) for record in records)
        taken_ms += sum(record.step_ms for record in records)
    said_rate, said_paces = simulated(arm, turns, requests)
    return {
        "arm": arm.name,
        "load": turns.load,
        "tokens_per_s": [round(rate, 1), round(said_rate, 1)],
        "tpot_p95_ms": [round(float(np.quantile(each, 0.95)), 2) for each in (own_paces, said_paces)],
        "tpot_p50_ms": [round(float(np.median(each)), 2) for each in (own_paces, said_paces)],
        "requests": [len(own_paces), len(said_paces)],
        "step_times": round(said_ms / taken_ms - 1.0, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--loads", default="1,4,16")
    parser.add_argument("--per-class", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64, help="of an answer, at most")
    parser.add_argument("--turns", type=int, default=8, help="of every arm at a load, in mirrored order")
    parser.add_argument("--turn-tokens", type=int, default=400, help="of an arm at a load, in each turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    arms = Arms(open_model(options.model, read_environment()), settings())
    for arm in (RECORDING, *ARMS):
        arms.open(arm.name, arm.policy, draft_len=arm.draft_len)
    print(f"{read_hardware().device}; {arms.runner.info.name} {arms.runner.info.weight_format}", flush=True)
    measured = {}
    try:
        prepared = prepare(arms, options.per_class, options.tokens)
        every = len(prepared) + KNOWN_AT  # the first ones are not whole in the record
        whole = arms.loops[RECORDING.name].serve(stream(prepared, 0), KNOWN_AT, lambda s: len(s.answers) >= every)
        for load in map(int, options.loads.split(",")):
            tokens = max(options.turn_tokens, GENERATIONS * load * options.tokens)
            measured[load] = tokens, *measure(arms, prepared, load, tokens, options.turns)
            print(f"measured at load {load}", flush=True)
    finally:
        arms.close()

    asked = known(prepared, whole)
    rows, trusts = [], []
    said = f"{'simulated':>9} {'error':>7}"
    print(f"{'arm':<10} {'load':>4}  {'tokens/s':>9} {said}  {'TPOT p95':>9} {said}  requests   steps")
    for load, (tokens, recorded, by_arm) in measured.items():
        records = [turn.records for turn in recorded]
        cost, trust = calibrated(arms.costs(), list(itertools.chain(*records)), source="at start")
        trusts.append(trust)
        for arm in ARMS:
            row = compared(arm, by_arm[arm.name], Turns(load, tokens, records, cost), asked)
            rows.append(row)
            (rate, said_rate), (tpot, said_tpot) = row["tokens_per_s"], row["tpot_p95_ms"]
            print(
                f"{arm.name:<10} {load:4d}  {rate:9.1f} {said_rate:9.1f} {said_rate / rate - 1.0:+7.1%}  {tpot:9.2f} "
                f"{said_tpot:9.2f} {said_tpot / tpot - 1.0:+7.1%}  {row['requests'][0]:8d} {row['step_times']:+7.1%}",
                flush=True,
            )
    for load, trust in zip(measured, trusts, strict=True):
        print(f"load {load}: step times {trust.said()}")
    errors = {
        key: float(np.mean([abs(row[key][1] / row[key][0] - 1.0) for row in rows]))
        for key in ("tokens_per_s", "tpot_p95_ms")
    }
    print(f"mean absolute error: throughput {errors['tokens_per_s']:.1%}, TPOT p95 {errors['tpot_p95_ms']:.1%}")
    if options.json:
        print(json.dumps({"cells": rows, "errors": errors, "steps": [trust.to_json() for trust in trusts]}))


if __name__ == "__main__":
    main()
