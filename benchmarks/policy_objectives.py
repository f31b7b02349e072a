"""Objectives kept by `interactive` and missed by `throughput`, on the engine:  python benchmarks/policy_objectives.py

Eight requests at once, every second one code edits that have a TPOT objective, which plain decoding misses and
`interactive` at the end of its dial (`urgent`) can keep; both is checked first, and again on what is counted. All arms
run side by side, a slice of some 40 ms each in turn, each in its own time: while others run its clock stands still, for
its policy and its answers alike.

The objective is a share of plain TPOT. In milliseconds it is set when a request is sent, from the plain answers that
ended just before: `off` runs beside the others. It is the same for all arms, and stays as it is until the answer ends,
however fast the host is meanwhile.

Answers end where they begin to loop. The last line is JSON; intervals (95 %) are over blocks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from class_answers import Workload, open_classes
from closed_loop import Answer, Arms, Served
from side_by_side import Lane, SideBySide

from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.intake import Prepared
from decodeloop.evaluation.statistics import attainment, paired_ratio
from decodeloop.types import FloatArray, IntArray, RequestClass, Slo

CLASSES = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT  # with an objective, without
LOAD = 8
OBJECTIVE = 0.9  # of plain TPOT
LATEST = 12  # plain answers that an objective is set from
KEPT = 0.8  # for so many it must be missed plainly, and can be kept where nothing else counts
LEARNING, CHECKING, CHECKS = 8_000, 6_000, 4  # tokens of each arm that are not counted, blocks
ARMS = ("off", "urgent", "throughput", "interactive")
FALL, COST = 3.0, 0.1  # goals: violations fall so many times, at most so much throughput is lost
RESAMPLED = 4000


class PlainPace:
    """TPOT of the latest plain answers, of requests with an objective."""

    def __init__(self) -> None:
        self._before: Sequence[Answer] = ()
        self._now: Sequence[Answer] = ()

    def follow(self, answers: Sequence[Answer]) -> None:
        """To which more will be added."""
        self._before, self._now = [*self._before, *self._now][-4 * LATEST :], answers

    def objective(self) -> Slo:
        latest = own_paces([*self._before, *self._now[-4 * LATEST :]])[-LATEST:]
        return Slo(tpot_ms=OBJECTIVE * float(np.median(latest)) if latest else 1e9)


@dataclass(frozen=True)
class Block:
    """A part of what an arm has served. paces: TPOT of each answer with an objective, in objectives."""

    tokens_per_s: float
    paces: Sequence[float]

    @property
    def late(self) -> int:
        return sum(pace > 1.0 for pace in self.paces)


def own_paces(answers: Sequence[Answer]) -> list[float]:
    """TPOT, ms, of the answers with an objective."""
    return [answer.tpot_ms for answer in answers if answer.slo.tpot_ms]


def blocks_of(served: Served, count: int) -> list[Block]:
    """Of as many tokens each: in all arms the same moments of the host."""
    said = np.cumsum([sum(row.emitted for row in record.rows) for record in served.records])
    ends_s = np.array([record.at_s + record.step_ms / 1e3 for record in served.records])
    cuts = np.searchsorted(said, said[-1] * np.arange(1, count + 1) / count)
    tokens = np.diff(said[cuts], prepend=0)
    seconds = np.diff(ends_s[cuts], prepend=served.records[0].at_s)
    paces: list[list[float]] = [[] for _ in cuts]
    for answer in served.answers:
        if answer.slo.tpot_ms and answer.ended_s <= ends_s[-1]:
            paces[int(np.searchsorted(ends_s[cuts], answer.ended_s))].append(answer.tpot_ms / answer.slo.tpot_ms)
    return [Block(float(n / s), own) for n, s, own in zip(tokens, seconds, paces, strict=True)]


def summary(blocks: Mapping[str, Sequence[Block]]) -> dict[str, Any]:
    said = {name: to_json(own) for name, own in blocks.items()}
    plainly, ours = blocks["throughput"], blocks["interactive"]
    rate = paired_ratio([own.tokens_per_s for own in ours], [own.tokens_per_s for own in plainly])
    fall, least, most = fall_of(plainly, ours)
    return {
        "objective_in_plain_tpot": OBJECTIVE,
        "feasible": feasible(said),
        **said,
        "fall": [round(value, 2) for value in (fall, least, most)],
        "rate_against_throughput": [round(value, 3) for value in (rate.ratio, rate.low, rate.high)],
        "holds": feasible(said) and fall >= FALL and rate.ratio >= 1.0 - COST,
    }


def to_json(blocks: Sequence[Block]) -> dict[str, Any]:
    found = attainment([own.late for own in blocks], [len(own.paces) for own in blocks])
    paces = [pace for own in blocks for pace in own.paces]
    return {
        "violations": round(found.share, 3),
        "interval": [round(found.low, 3), round(found.high, 3)],
        "requests": found.trials,
        "tokens_per_s": round(math.exp(float(np.mean([math.log(own.tokens_per_s) for own in blocks]))), 1),
        "tpot_in_objectives": [round(q, 3) for q in np.quantile(paces, (0.1, 0.5, 0.9)).tolist()],
    }


def fall_of(before: Sequence[Block], after: Sequence[Block]) -> tuple[float, float, float]:
    """Share late before / after, and a 95 % bootstrap interval over blocks, which both share."""
    late = np.array([[own.late for own in arm] for arm in (before, after)], dtype=np.float64)
    asked = np.array([[len(own.paces) for own in arm] for arm in (before, after)], dtype=np.float64)

    def fall(drawn: IntArray) -> FloatArray:
        """drawn: [R, B] blocks."""
        shares = np.maximum(late[:, drawn].sum(axis=-1), 1.0) / asked[:, drawn].sum(axis=-1)
        ratio: FloatArray = shares[0] / shares[1]
        return ratio

    everything = np.arange(len(before))
    drawn = np.random.default_rng(0).integers(len(before), size=(RESAMPLED, len(before)))
    low, high = np.quantile(fall(drawn), (0.025, 0.975))
    return float(fall(everything[None])[0]), float(low), float(high)


def feasible(said: Mapping[str, Mapping[str, Any]]) -> bool:
    return said["off"]["violations"] >= KEPT and said["urgent"]["violations"] <= 1.0 - KEPT


class Comparison:
    """The arms, and the requests that each of them serves."""

    def __init__(self, arms: Arms, workload: Workload) -> None:
        self._arms, self._workload, self._plain = arms, workload, PlainPace()
        arms.open("urgent", "interactive", policy_options={"frontier": 1.0})
        arms.open("throughput", "throughput")
        arms.open("interactive", "interactive")

    def half(self) -> Iterator[Prepared]:
        """Copying requests with an objective and chat without, in turn."""
        for copying, chat in zip(*(itertools.cycle(self._workload.scripts[str(c)]) for c in CLASSES), strict=True):
            prepared = self._workload.prepared(copying)
            yield replace(prepared, request=replace(prepared.request, slo=self._plain.objective()))
            yield self._workload.prepared(chat)

    def learn(self) -> None:
        """What plain answers take, then what policies need to know."""
        plain = self._arms.loops["off"].serve(self.half(), LOAD, lambda served: len(served.answers) >= 4 * LATEST)
        self._plain.follow(plain.answers)
        self.serve(LEARNING)

    def serve(self, tokens: int) -> dict[str, Served]:
        """So many tokens of each arm."""
        lanes = {name: Lane(self._arms.loops[name], self.half(), LOAD) for name in ARMS}
        self._plain.follow(lanes["off"].answers)
        return SideBySide(lanes, tokens).serve()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--runner", default="auto")
    parser.add_argument("--tokens", type=int, default=34_000, help="of each arm, all blocks together")
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line")
    options = parser.parse_args()

    def tell(what: str, found: Mapping[str, Any]) -> None:
        if not options.json:
            print(f"{what}: {json.dumps(found, indent=1)}", flush=True)

    arms, workload = open_classes(options.model, options.runner, CLASSES)
    try:
        comparison = Comparison(arms, workload)
        comparison.learn()
        checked = {name: to_json(blocks_of(own, CHECKS)) for name, own in comparison.serve(CHECKING).items()}
        tell("feasible" if feasible(checked) else "not feasible", {name: checked[name] for name in ARMS[:2]})
        served = comparison.serve(options.tokens)
        described = arms.loops["interactive"].describe()["aim"]
    finally:
        arms.close()
    found = summary({name: blocks_of(own, options.blocks) for name, own in served.items()})
    tell("objectives", {**found, "interactive says": described})
    print(json.dumps({**found, "feasible_before": feasible(checked), "device": read_hardware().device}))


if __name__ == "__main__":
    main()
