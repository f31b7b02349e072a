"""Time-per-output-token objectives, at the least cost in throughput.

The tokens that an answer with an objective is behind are a queue, and those it is ahead a negative one, since what
counts is the pace of the whole answer:

    lag = time spent / TPOT - tokens.

A step maximises  sum_r (V + Z_r) E[tokens_r]  -  (V lambda + sum_r Z_r / TPOT_r) T  (drift plus penalty, Neely 2010),
lambda being the rate that is attainable now and  Z_r = min(Z_most, max(0, lag_r + presumed_class)).  The second bracket
is the price of time: while T passes, every queue grows by T / TPOT, so who is late pays for long steps, whoever's
tokens made them long. Without it the queues diverge. V sets how many tokens late a request must be before it counts
twice: a small V follows the luck of single drafts. What trades objectives against throughput is Z_most, the most that
lateness may weigh.

A queue that has to grow before it acts leaves every answer late by its length, which in an average over all time is
nothing and in an answer of a hundred tokens is all. So answers of a class are presumed to be behind from their first
token on (place-holder backlog, Neely 2010, 4.8), by a price that the class has learned: the multiplier of "at most
LATE of its answers end late", raised by each that does and lowered a little by each that doesn't. Who was late at
Z_most says nothing about it: more could not have been done.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.adaptive import AdaptivePolicy
from decodeloop.policy.aim import Market, Terms
from decodeloop.policy.allocate import Priced
from decodeloop.policy.frontier import Point
from decodeloop.policy.guard import PlainGuard
from decodeloop.policy.options import AdaptiveOptions, read_options
from decodeloop.types import CostModel, DecodeRequest, Reason, RequestClass, StepRecord

V = 4.0  # tokens
Z_MOST = 64.0  # tokens, at the end of the dial
LATE = 0.05  # the share of a class's answers that may end late
LEARNED = 2.0  # tokens that a late answer adds to what its class is presumed to be behind
MAX_CLASSES = 1024
MEMORY = 0.02  # a step's weight in the reported point

Key = tuple[str, RequestClass]


@dataclass(slots=True)
class _Answer:
    """One that is being written. lag: tokens behind its objective; below 0, ahead of it."""

    key: Key
    tpot_ms: float
    lag: float = 0.0


class Interactive:
    """frontier: 0 ignores objectives (Z_most = 0: all throughput), 0.5 lets lateness weigh up to 5-fold, 1 17-fold."""

    reason = Reason.INTERACTIVE

    def __init__(self, options: AdaptiveOptions) -> None:
        self._frontier, self._default = options.frontier, options.tpot_ms
        self._most = min(4 * V * options.frontier / max(1.0 - options.frontier, 1e-9), Z_MOST)
        self._answers: dict[tuple[str, str], _Answer] = {}  # (tenant, request) of the step at hand
        self._presumed: dict[Key, float] = {}
        self._behind = 0.0
        self._point = Point()

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        met: dict[tuple[str, str], _Answer] = {}
        for request in requests:
            objective = self._default if request.slo.tpot_ms is None else request.slo.tpot_ms
            if objective is not None:
                name = request.tenant, request.request_id
                known = self._answers.get(name)
                met[name] = known or _Answer((request.tenant, request.request_class), objective)
        for name, answer in self._answers.items():
            if name not in met:
                self._ended(answer)
        self._answers = met

    def heaviest(self) -> float:
        return 1.0 + max(map(self._weight, self._answers.values()), default=0.0) / V

    def terms(self, requests: Sequence[DecodeRequest], market: Market) -> Terms:
        behind = np.zeros(len(requests))
        urgency = 0.0
        for i, request in enumerate(requests):
            answer = self._answers.get((request.tenant, request.request_id))
            if answer is not None:
                behind[i] = self._weight(answer)
                urgency += behind[i] / answer.tpot_ms
        weights, price = V + behind, V * market.rate(None) + urgency
        # An objective out of reach would call time dearer than anything it can buy; nobody gets faster by waiting less.
        return Terms(weights, Priced(min(price, market.rate(weights))))

    def follow(self, record: StepRecord) -> None:
        """Who is late is a matter of single steps."""
        if not self._answers:
            return
        late = []
        for row in record.rows:
            answer = self._answers.get((row.tenant, row.request_id))
            if answer is not None and not row.prefill_tokens and row.emitted + row.discarded:
                answer.lag += record.step_ms / answer.tpot_ms - (row.accepted + 1)
                late.append(max(answer.lag, 0.0))
        if late:
            self._behind += MEMORY * (sum(late) / len(late) - self._behind)

    def observe(self, record: StepRecord) -> None:
        self._point.see(record)

    def describe(self) -> Mapping[str, Any]:
        answers, presumed = list(self._answers.values()), list(self._presumed.items())
        return {
            "frontier": self._frontier,
            "objective": "tokens per ms, and TPOT objectives",
            "requests_with_objective": len(answers),
            "infeasible": sum(map(self._is_infeasible, answers)),
            "tokens_behind": round(self._behind, 3),
            "presumed_behind": [
                {"tenant": tenant, "class": str(request_class), "tokens": round(tokens, 3)}
                for (tenant, request_class), tokens in presumed
            ],
            "point": self._point.describe(),
        }

    def _weight(self, answer: _Answer) -> float:
        return min(max(answer.lag + self._presumed.get(answer.key, 0.0), 0.0), self._most)

    def _is_infeasible(self, answer: _Answer) -> bool:
        return self._weight(answer) >= self._most > 0.0

    def _ended(self, answer: _Answer) -> None:
        late = answer.lag > 0.0
        if late and self._is_infeasible(answer):
            return
        if answer.key not in self._presumed and len(self._presumed) >= MAX_CLASSES:
            del self._presumed[next(iter(self._presumed))]
        learned = self._presumed.get(answer.key, 0.0) + LEARNED * (float(late) - LATE)
        self._presumed[answer.key] = min(max(learned, 0.0), self._most)


class InteractivePolicy(AdaptivePolicy):
    """Objectives as far as the dial says. Requests without one give way: their bound is lifted unless one is set."""

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        options = read_options(settings.options)
        bound = options.interference if "interference" in settings.options else None
        guard = PlainGuard(math.inf if bound is None else bound)
        super().__init__("interactive", settings, options, cost, aim=Interactive(options), guard=guard)
