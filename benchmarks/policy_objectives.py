"""Objectives kept and missed by `throughput` and by `interactive`, on the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from closed_loop import Arms, Served

from decodeloop.engine.intake import Prepared
from decodeloop.evaluation.statistics import attainment, paired_ratio
from decodeloop.types import Slo

LOAD = 8
OBJECTIVE = 0.9  # of plain TPOT
KEPT = 0.8  # for so many it must be missed plainly, and can be kept where nothing else counts
TURNS = ("throughput", "interactive")  # then the other way round
FALL, COST = 3.0, 0.1  # goals: violations fall so many times, at most so much throughput is lost

Streams = Callable[[Slo], Iterator[Prepared]]


@dataclass
class Blocks:
    """What an arm has shown, a number a turn. late, asked: requests with an objective, all of them."""

    late: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    paces: list[float] = field(default_factory=list)  # ms a token, of each request, in objectives

    def add(self, served: Served, slo: Slo) -> None:
        paces = [pace / slo.tpot_ms for pace in own_paces(served)]
        self.paces += paces
        self.late.append(sum(pace > 1.0 for pace in paces))
        self.asked.append(len(paces))
        self.tokens_per_s.append(served.tokens / served.seconds)

    def to_json(self) -> dict[str, Any]:
        found = attainment(self.late, self.asked)
        return {
            "violations": round(found.share, 3),
            "interval": [round(found.low, 3), round(found.high, 3)],
            "requests": found.trials,
            "tokens_per_s": round(math.exp(float(np.mean(np.log(self.tokens_per_s)))), 1),
            "tpot_in_objectives": [round(q, 3) for q in np.quantile(self.paces, (0.5, 0.9)).tolist()],
        }


def own_paces(served: Served) -> list[float]:
    """TPOT, ms, of the answers with an objective."""
    return [answer.tpot_ms for answer in served.answers if answer.slo.tpot_ms]


def compare(arms: Arms, half: Streams, count: int, blocks: int) -> dict[str, Any]:
    """half: requests of which every second one has the objective.

    The objective is a share of plain TPOT. In milliseconds it is set anew by plain decoding before each pair of turns:
    what the machine does meanwhile is nobody's violation.
    """

    def serve(name: str, slo: Slo) -> Served:
        return arms.loops[name].serve(half(slo), LOAD, lambda served: len(served.answers) >= count)

    def objective() -> Slo:
        return Slo(tpot_ms=OBJECTIVE * float(np.median(own_paces(serve("off", Slo(tpot_ms=1e9))))))

    arms.open("urgent", "interactive", policy_options={"frontier": 1.0})
    for name in TURNS:
        arms.open(name, name)
    found: dict[str, Blocks] = {name: Blocks() for name in ("off", "urgent", *TURNS)}
    slo = objective()
    for name in ("urgent", *TURNS, *TURNS):  # to learn
        serve(name, slo)
    for _ in range(blocks):
        for pair in (TURNS, TURNS[::-1]):
            slo = objective()
            for name in pair:
                found[name].add(serve(name, slo), slo)
        found["off"].add(serve("off", slo), slo)
        found["urgent"].add(serve("urgent", slo), slo)
    return summary(found)


def summary(found: dict[str, Blocks]) -> dict[str, Any]:
    said = {name: own.to_json() for name, own in found.items()}
    least = 1.0 / sum(found["interactive"].asked)
    fall = said["throughput"]["violations"] / max(said["interactive"]["violations"], least)
    rate = paired_ratio(found["interactive"].tokens_per_s, found["throughput"].tokens_per_s)
    feasible = said["off"]["violations"] >= KEPT and said["urgent"]["violations"] <= 1.0 - KEPT
    return {
        "objective_in_plain_tpot": OBJECTIVE,
        "feasible": feasible,
        **said,
        "fall": round(fall, 2),
        "rate_against_throughput": [round(value, 3) for value in (rate.ratio, rate.low, rate.high)],
        "holds": feasible and fall >= FALL and rate.ratio >= 1.0 - COST,
    }
