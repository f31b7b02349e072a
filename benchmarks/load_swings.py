"""Load 1 -> 16 -> 1: does the draft length fall with the crowd, and is it back to what it would be without it?

Two adaptive arms learn on the same requests, one after another. Then, ROUNDS times, one of them serves a crowd, the
other goes on alone; after that both serve every script once, from the first on, side by side: the same texts in the
same minutes, each arm in its own time. What the crowd has left behind is all that they differ in.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from class_answers import Workload
from closed_loop import Arms, Served
from side_by_side import serve_side_by_side
from turns import rate, steps, verified

from decodeloop.engine.intake import Prepared
from decodeloop.evaluation.statistics import Ratio, paired_ratio
from decodeloop.types import RequestClass

CROWD, CROWDED_STEPS = 16, 250
ROUNDS = 4
AT_ONCE = 60  # steps after the crowd, which are looked at on their own
FALLEN, RECOVERED = 0.5, 0.8  # goals: of the length alone, at most in the crowd and at least after it


class LoadSwings:
    """One class's scripts under both loads."""

    def __init__(self, arms: Arms, workload: Workload, text: RequestClass) -> None:
        self._workload, self._scripts = workload, workload.scripts[str(text)]
        self._swinging, self._steady = (arms.open(name, "adaptive") for name in ("swinging", "steady"))

    def run(self) -> dict[str, Any]:
        self._alone()  # learning
        crowded, after = list[Served](), list[dict[str, Served]]()
        for _ in range(ROUNDS):
            crowded.append(self._swinging.serve(self._stream(), CROWD, steps(CROWDED_STEPS)))
            self._steady.serve(self._stream(), 1, steps(CROWDED_STEPS))
            after.append(self._alone())
        swinging, steady = ([each[name] for each in after] for name in ("swinging", "steady"))
        recovery = paired_ratio(_lengths(swinging), _lengths(steady))
        at_once = paired_ratio(_lengths(swinging, AT_ONCE), _lengths(steady, AT_ONCE))
        speed = paired_ratio([rate(own) for own in swinging], [rate(own) for own in steady])
        return {
            "verified": {"crowded": _lengths(crowded), "after": _lengths(swinging), "steady": _lengths(steady)},
            "tokens_per_s": {
                "crowded": list(map(rate, crowded)),
                "after": list(map(rate, swinging)),
                "steady": list(map(rate, steady)),
            },
            "after_against_steady": _said(recovery),
            "at_once_against_steady": _said(at_once),
            "speed_against_steady": _said(speed),
            "holds": max(_lengths(crowded)) < FALLEN * min(_lengths(steady)) and recovery.low > RECOVERED,
        }

    def _alone(self) -> dict[str, Served]:
        """Every script once, one after another, by both arms side by side."""
        loops = {"swinging": self._swinging, "steady": self._steady}
        tokens = sum(script.tokens for script in self._scripts)
        return serve_side_by_side(loops, {name: self._stream() for name in loops}, load=1, tokens=tokens)

    def _stream(self) -> Iterator[Prepared]:
        return map(self._workload.prepared, itertools.cycle(self._scripts))


def _lengths(served: Sequence[Served], count: int | None = None) -> list[float]:
    """Of each, in its first `count` steps."""
    return [verified(own.records[:count]) for own in served]


def _said(ratio: Ratio) -> list[float]:
    return [round(value, 3) for value in (ratio.ratio, ratio.low, ratio.high)]
