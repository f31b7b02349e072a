"""A discrete-event simulation of a fleet: what arrival traces, step times and acceptance amount to.

Every figure is mode M (simulated). Step times come from a CostModel (measured, fitted elsewhere, or a roofline prior,
see its `label`), drafts and their fate from an Acceptance, arrivals from a trace or from clients that wait for their
answers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, islice, repeat
from typing import Any

import numpy as np

from decodeloop.evaluation.acceptance import Acceptance
from decodeloop.evaluation.fleet import Limits, Replica, Rule, Served
from decodeloop.evaluation.workload import Arrival
from decodeloop.types import CostModel

SAMPLED = 64  # replicas simulated of a larger fleet: requests are dealt to as large a share of the arrivals
ROUTED_AMONG = 2  # replicas that a request is offered to: the less loaded takes it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """replicas: engines of one model, each on `accelerators`. split: the share that only prefills (None: all do both).

    transfer_ms: moving a request's cache from a prefilling to a decoding replica.
    """

    replicas: int
    cost: CostModel
    rule: Callable[[], Rule]  # a new one for each replica
    acceptance: Acceptance
    limits: Limits = Limits()
    accelerators: int = 1
    split: float | None = None
    transfer_ms: float = 0.0

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ValueError("a fleet has at least one replica")
        if self.split is not None and not (0.0 < self.split < 1.0 and self.replicas >= 2):
            raise ValueError("a split fleet needs two replicas and a share between 0 and 1 for prefill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulation gave. Rates are of the whole fleet, also where only a sample of it was simulated."""

    label: str
    requests: int
    finished: int
    seconds: float
    tokens_per_s: float
    tokens_per_s_per_accelerator: float
    ttft_ms: dict[str, float]
    tpot_ms: dict[str, float]
    busy_share: float
    mean_verify_len: float
    simulated_replicas: int
    per_class: dict[str, dict[str, float]]

    def goodput(self, served: Sequence[Served], *, ttft_ms: float, tpot_ms: float) -> float:
        """Requests a second that met both objectives, of those offered."""
        met = sum(s.done and s.ttft_ms <= ttft_ms and s.tpot_ms <= tpot_ms for s in served)
        return met / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__} | {"mode": "M"}


def simulate(
    fleet: Fleet, arrivals: Iterable[Arrival], *, until_s: float | None = None, seed: int = 0
) -> tuple[Simulated, list[Served]]:
    """Serve a trace. Of more than SAMPLED replicas a sample is simulated, with its share of the arrivals."""
    simulated = min(fleet.replicas, SAMPLED)
    rng = np.random.default_rng(seed)
    loop = _Loop(fleet, simulated, rng)
    for arrival in arrivals:
        if simulated == fleet.replicas or rng.random() < simulated / fleet.replicas:
            loop.arrive(arrival)
    loop.run(until_s)
    return _summary(fleet, loop, until_s), loop.served


def simulate_closed(
    fleet: Fleet,
    clients: Sequence[Arrival],
    *,
    seconds: float,
    ramp_s: float = 0.0,
    seed: int = 0,
    following: Iterator[Arrival] | None = None,
) -> tuple[Simulated, list[Served]]:
    """As soon as it is answered a client sends the next of `following`, if any is left; without that, the same again.

    The ramp is left out of the figures.
    """
    if fleet.replicas > SAMPLED:
        raise ValueError(f"clients that wait are simulated one by one: at most {SAMPLED} replicas")
    loop = _Loop(fleet, fleet.replicas, np.random.default_rng(seed))
    loop.following = repeat(None) if following is None else following
    for client in clients:
        loop.arrive(client)
    loop.run(ramp_s)
    loop.reset(ramp_s)
    loop.run(ramp_s + seconds)
    return _summary(fleet, loop, ramp_s + seconds), loop.served


def simulate_turns(
    fleet: Fleet, streams: Iterable[Iterator[Arrival]], *, load: int, tokens: int, seed: int = 0
) -> Iterator[tuple[Simulated, list[Served]]]:
    """Closed loops after one another, as they are measured; what rules have learned stays with them.

    Each begins with `load` clients of its stream, all at once, and is counted from when they all decode until `tokens`
    more are out; then what still runs is dropped. Gives the requests that began and ended while counted.
    """
    if fleet.replicas > SAMPLED:
        raise ValueError(f"clients that wait are simulated one by one: at most {SAMPLED} replicas")
    loop = _Loop(fleet, fleet.replicas, np.random.default_rng(seed))
    for stream in streams:
        loop.following = stream
        for client in islice(stream, load):
            loop.arrive(replace(client, at_s=loop.now_s))
        loop.run_while(lambda: loop.decoding < load)
        loop.reset(loop.now_s)
        loop.run_while(lambda: loop.tokens < tokens)
        yield _summary(fleet, loop, None), [s for s in loop.served if s.done and s.first_token_s > loop.started_s]
        loop.drop()


class _Loop:
    """Events in the order of their times: arrivals, transfers, ends of steps."""

    def __init__(self, fleet: Fleet, replicas: int, rng: np.random.Generator) -> None:
        self.fleet, self._rng = fleet, rng
        prefilling = 0 if fleet.split is None else min(max(round(fleet.split * replicas), 1), replicas - 1)
        self.replicas = [
            Replica(
                fleet.cost,
                fleet.rule(),
                fleet.acceptance,
                fleet.limits,
                np.random.default_rng(rng.integers(2**63)),
                prefills=fleet.split is None or i < prefilling,
                decodes=fleet.split is None or i >= prefilling,
            )
            for i in range(replicas)
        ]
        self._prefilling = [i for i, replica in enumerate(self.replicas) if replica.prefills]
        self._decoding = [i for i, replica in enumerate(self.replicas) if replica.decodes]
        self.now_s = self.started_s = 0.0
        self.served: list[Served] = []
        self.following: Iterator[Arrival | None] | None = None  # of clients that wait; None: nobody does
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._ticket = count()
        self._stepping: set[int] = set()

    @property
    def decoding(self) -> int:
        """Requests whose prompts are read."""
        return sum(replica.decoding for replica in self.replicas)

    @property
    def tokens(self) -> int:
        return sum(replica.tokens for replica in self.replicas)

    def arrive(self, arrival: Arrival) -> None:
        nature = self.fleet.acceptance.assign(arrival, self._rng)
        request = Served(arrival, number=next(self._ticket), nature=nature)
        self.served.append(request)
        self._at(request.arrival.at_s, lambda: self._route(request, prefill=True))

    def run(self, until_s: float | None) -> None:
        self.run_while(lambda: until_s is None or self._events[0][0] <= until_s)

    def run_while(self, goes_on: Callable[[], bool]) -> None:
        while self._events and goes_on():
            self.now_s, _, event = heapq.heappop(self._events)
            event()

    def drop(self) -> None:
        """Whatever runs or waits is gone."""
        self.served, self._events = [], []
        self._stepping.clear()
        for replica in self.replicas:
            replica.drop()

    def reset(self, at_s: float) -> None:
        """Forget what was counted so far; what is running goes on."""
        self.started_s = at_s
        self.served = [request for request in self.served if not request.done]
        for replica in self.replicas:
            replica.busy_s, replica.steps, replica.tokens = 0.0, 0, 0
            replica.verified, replica.drafted_rows = 0, 0

    def _at(self, at_s: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (at_s, next(self._ticket), event))

    def _route(self, request: Served, *, prefill: bool) -> None:
        able = self._prefilling if prefill else self._decoding
        offered = [able[i] for i in self._rng.permutation(len(able))[:ROUTED_AMONG].tolist()]
        chosen = min(offered, key=lambda i: self.replicas[i].load)
        self.replicas[chosen].waiting.append(request)
        self._at(self.now_s, lambda: self._step(chosen))  # with whatever else arrives at this moment

    def _step(self, i: int) -> None:
        replica = self.replicas[i]
        if i in self._stepping or replica.idle:
            return
        started_s, planned = self.now_s, replica.begin(self.now_s)
        self._stepping.add(i)

        def end() -> None:
            self._stepping.discard(i)
            for request in replica.finish(planned, self.now_s, started_s):
                self._leave(request)
            self._at(self.now_s, lambda: self._step(i))  # after what arrives in answer to it

        self._at(planned.ends_s, end)

    def _leave(self, request: Served) -> None:
        if not request.done:
            moved_s = self.now_s + self.fleet.transfer_ms / 1e3
            self._at(moved_s, lambda: self._route(request, prefill=False))
        elif self.following is not None:
            for following in islice(self.following, 1):
                self.arrive(replace(following or request.arrival, at_s=self.now_s))


def _summary(fleet: Fleet, loop: _Loop, until_s: float | None) -> Simulated:
    seconds = (loop.now_s if until_s is None else min(until_s, loop.now_s)) - loop.started_s
    scale = fleet.replicas / len(loop.replicas)
    rate = scale * loop.tokens / seconds if seconds > 0.0 else 0.0
    done = [request for request in loop.served if request.done]
    rows = sum(replica.drafted_rows for replica in loop.replicas)
    per_class = {
        str(c): _latencies([s for s in done if s.arrival.request_class is c])
        for c in dict.fromkeys(s.arrival.request_class for s in done)
    }
    return Simulated(
        label=str(getattr(fleet.cost, "label", "measured surface")),
        requests=len(loop.served),
        finished=len(done),
        seconds=seconds,
        tokens_per_s=rate,
        tokens_per_s_per_accelerator=rate / (fleet.replicas * fleet.accelerators),
        ttft_ms=_quantiles([s.ttft_ms for s in done]),
        tpot_ms=_quantiles([s.tpot_ms for s in done if s.arrival.output_tokens > 1]),
        busy_share=sum(r.busy_s for r in loop.replicas) / (seconds * len(loop.replicas)) if seconds > 0.0 else 0.0,
        mean_verify_len=sum(r.verified for r in loop.replicas) / rows if rows else 0.0,
        simulated_replicas=len(loop.replicas),
        per_class=per_class,
    )


def _latencies(served: Sequence[Served]) -> dict[str, float]:
    tpot = _quantiles([s.tpot_ms for s in served if s.arrival.output_tokens > 1])
    return {"requests": len(served), "tpot_ms_p50": tpot.get("p50", 0.0), "tpot_ms_p95": tpot.get("p95", 0.0)}


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    p50, p95 = np.quantile(values, [0.5, 0.95])
    return {"mean": float(np.mean(values)), "p50": float(p50), "p95": float(p95)}
