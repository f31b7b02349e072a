"""Takes a plan's turns one after the other: every arm, every level, block by block, into a results file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from decodeloop.evaluation.client.load import Tell, closed_turn, open_turn, silent
from decodeloop.evaluation.client.target import Target
from decodeloop.evaluation.journal import Journal
from decodeloop.evaluation.plan import LoadKind, Plan, TurnKey
from decodeloop.evaluation.results import Results, Turn
from decodeloop.evaluation.workloads.sampling import slices
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest

OPEN_RAMP = 0.1  # of an open loop's arrivals


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """What a progress bar hears: each request's end, each turn's."""

    request: Tell = silent
    turn: Callable[[TurnKey, Turn | None], None] = lambda key, turn: None  # None: it begins


@dataclass(frozen=True, slots=True)
class Served:
    """What each turn serves. Within a block, turn 0 and turn 1 serve different requests, and every arm the same ones:
    pairs are alike, and no arm meets a request twice as long as the workload lasts (`fresh`). spare: requests that are
    measured nowhere, for the ramps."""

    plan: Plan
    parts: Sequence[Sequence[WorkRequest]]
    spare: Sequence[WorkRequest]
    fresh: bool

    @classmethod
    def of(cls, plan: Plan, workload: Workload) -> Served:
        """Raises ValueError for a workload that isn't the plan's, or has no texts."""
        if workload.sha256 != plan.workload.sha256:
            raise ValueError(f"the plan is for another workload than {workload.name}: their hashes differ")
        if not all(request.has_text for request in workload.requests):
            raise ValueError(f"workload {workload.name} has requests without texts: fill them first")
        count = 2 * plan.blocks * len(plan.levels)
        if plan.arrivals == "trace":
            parts, fresh = _in_order(workload, plan.requests_per_turn, count)
        else:
            parts, fresh = slices(workload, plan.requests_per_turn, count, seed=plan.seed)
        measured = {request.id for part in parts for request in part}
        spare = [request for request in workload.requests if request.id not in measured]
        ramps = plan.load is LoadKind.CLOSED and max(plan.levels) > 1
        return cls(plan, parts, spare, fresh and (bool(spare) or not ramps))

    def requests(self, key: TurnKey) -> list[WorkRequest]:
        return [self._asked(request) for request in self.parts[self._place(key)]]

    def fillers(self, key: TurnKey) -> Iterator[WorkRequest]:
        """Requests for the ramps, without end: spare ones, else other turns', else the turn's own."""
        place = self._place(key)
        others = [request for number, part in enumerate(self.parts) if number != place for request in part]
        pool = self.spare or others or self.parts[place]
        while True:
            for i in np.random.default_rng([self.plan.seed, place]).permutation(len(pool)):
                yield self._asked(pool[int(i)])

    def arrivals(self, key: TurnKey) -> list[float]:
        """When each request of an open loop is due. Arms of a block get the same."""
        part, rate = self.parts[self._place(key)], key[0]
        if self.plan.arrivals == "trace":
            first = part[0].arrival_s or 0.0
            return [((request.arrival_s or 0.0) - first) / rate for request in part]
        rng = np.random.default_rng([self.plan.seed, 1 + self._place(key)])
        return [float(t) for t in np.cumsum(rng.exponential(1.0 / rate, len(part)))]

    def _place(self, key: TurnKey) -> int:
        level, block, turn, _ = key
        return (block * len(self.plan.levels) + self.plan.levels.index(level)) * 2 + turn

    def _asked(self, request: WorkRequest) -> WorkRequest:
        most = self.plan.max_tokens
        if most is None:
            return request
        own = int(request.params.get("max_tokens") or request.params.get("max_completion_tokens") or most)
        params = {name: value for name, value in request.params.items() if name != "max_completion_tokens"}
        return replace(request, params={**params, "max_tokens": min(own, most)})


async def measure(
    served: Served,
    targets: Mapping[str, Target],
    journal: Journal,
    missing: Sequence[TurnKey],
    *,
    observer: Observer | None = None,
    keep_text: bool = False,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Take the missing turns in their order. enough: asked before each block; true ends the run early.

    targets: by arm. Interrupted at any point, the journal holds every turn that was finished.
    """
    observer, plan = observer or Observer(), served.plan
    block = None
    for key in missing:
        if key[1] != block and enough():
            return
        block = key[1]
        observer.turn(key, None)
        target, requests = targets[key[3]], served.requests(key)
        if plan.load is LoadKind.CLOSED:
            turn, results = await closed_turn(
                target, key, requests, served.fillers(key), tell=observer.request, keep_text=keep_text
            )
        else:
            due = served.arrivals(key)
            turn, results = await open_turn(
                target, key, requests, due, ramp_s=OPEN_RAMP * due[-1], tell=observer.request, keep_text=keep_text
            )
        journal.add(turn, results)
        observer.turn(key, turn)


def same_texts(results: Results, arm: str, against: str) -> tuple[int, int]:
    """(equal, compared) answers of two arms to the same requests of the same turns, whole ones only."""
    found: dict[tuple[object, ...], dict[str, str]] = {}
    for request in results.requests:
        if request.error is None and not request.ramp and request.arm in (arm, against):
            place = request.level, request.block, request.turn, request.id
            found.setdefault(place, {})[request.arm] = request.text_hash
    pairs = [texts for texts in found.values() if len(texts) == 2]
    return sum(texts[arm] == texts[against] for texts in pairs), len(pairs)


def _in_order(workload: Workload, size: int, count: int) -> tuple[list[Sequence[WorkRequest]], bool]:
    """A trace's requests stay in their order: bursts are what a trace is used for."""
    requests = sorted(workload.requests, key=lambda request: request.arrival_s or 0.0)
    if len(requests) < size or any(request.arrival_s is None for request in requests):
        raise ValueError(f"workload {workload.name} has no {size} requests with arrivals for a turn")
    whole = len(requests) // size
    parts = [requests[i * size : (i + 1) * size] for i in range(whole)]
    return [parts[i % whole] for i in range(count)], count <= whole
