"""Time-per-output-token objectives, at the least cost in throughput.

The tokens that an answer with an objective is behind are a queue, and those it is ahead a negative one, since what
counts is the pace of the whole answer:

    lag = time spent / TPOT - tokens.

A step maximises  sum_r (V + Z_r) E[tokens_r]  -  (V lambda + sum_r Z_r / TPOT_r) T  (drift plus penalty, Neely 2010),
lambda being the rate that is attainable now and  Z_r = min(Z_most, max(0, lag_r + presumed_class)).  The second bracket
is the price of time: while T passes, every queue grows by T / TPOT, so who is late pays for long steps, whoever's
tokens made them long. Without it the queues diverge. V sets how many tokens late a request must be before it counts
twice: answers are short and differ, so that a large V would serve those whose drafts come easily beyond need. What
trades objectives against throughput is Z_most, the most that lateness may weigh.

A queue that has to grow before it acts leaves every answer late by its length, which in an average over all time is
nothing and in an answer of a hundred tokens is all. So answers of a class are presumed to be behind from their first
token on (place-holder backlog, Neely 2010, 4.8), by as much as it takes for the wanted share of them to end in time
(see `attainment`), and no more: a class whose answers end in time anyway is presumed to be ahead. What makes a class
late are those of its answers that copy little. The others show that they do better by being ahead, and a few tokens are
enough to go on plainly for long: by LEAD tokens ahead an answer has used up what its class is presumed to be behind,
however much that is.

A token that is decoded plainly takes its part of the step like any other. Where that costs the late more than the V it
is worth, its request sits the step out, if it has no objective and did not sit out the one before: it keeps half
of its pace at least. Where memory and not arithmetic bounds a step, a token costs hardly anything, and nobody does.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.adaptive import AdaptivePolicy
from decodeloop.policy.aim import Market, Terms
from decodeloop.policy.allocate import RATE, Priced
from decodeloop.policy.attainment import Key, Presumptions
from decodeloop.policy.cost import StepCosts
from decodeloop.policy.frontier import Point
from decodeloop.policy.guard import PlainGuard
from decodeloop.policy.options import AdaptiveOptions, read_options
from decodeloop.types import CostModel, DecodeRequest, Load, Plan, Reason, StepRecord

V = 2.0  # tokens
LEAD = 5.0  # tokens that an answer must be ahead, at most, before it weighs nothing
Z_MOST = 64 * V  # at the end of the dial
MEMORY = 0.02  # a step's weight in the reported point


@dataclass(slots=True)
class _Answer:
    """One that is being written. until_s: as far as its time is counted. lag: tokens behind its objective by then."""

    key: Key
    tpot_ms: float
    until_s: float | None
    lag: float = 0.0


class Interactive:
    """frontier: 0 ignores objectives (Z_most = 0: all throughput), 0.5 lets lateness weigh up to 17-fold, 1 65-fold."""

    reason = Reason.INTERACTIVE

    def __init__(self, options: AdaptiveOptions) -> None:
        self._frontier, self._attainment, self._default = options.frontier, options.attainment, options.tpot_ms
        self._most = min(16 * V * options.frontier / max(1.0 - options.frontier, 1e-9), Z_MOST)
        self._answers: dict[tuple[str, str], _Answer] = {}  # (tenant, request) of the step at hand
        self._presumed = Presumptions(options.attainment, self._most)
        self._held: set[tuple[str, str]] = set()  # in the latest step
        self._until_s: float | None = None  # the end of the latest step
        self._behind = self._held_share = 0.0
        self._point = Point()

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        met: dict[tuple[str, str], _Answer] = {}
        for request in requests:
            objective = self._default if request.slo.tpot_ms is None else request.slo.tpot_ms
            if objective is not None:
                name = request.tenant, request.request_id
                known = self._answers.get(name)
                met[name] = known or _Answer((request.tenant, request.request_class), objective, self._until_s)
        for name, answer in self._answers.items():
            if name not in met:
                self._presumed.ended(answer.key, late=answer.lag > 0.0)
        self._answers = met

    def hold(self, load: Load, requests: Sequence[DecodeRequest], costs: StepCosts) -> tuple[int, ...]:
        """Of the requests that were met, whose tokens cost the others more than they are worth."""
        names = [(request.tenant, request.request_id) for request in requests]
        free = [i for i, name in enumerate(names) if name not in self._answers and name not in self._held]
        needs = self._needs()
        held: tuple[int, ...] = ()
        if needs and free:
            least = len(requests) + load.prefill_tokens - len(free)
            ms = costs.step_ms_from(least, len(free) + 1, load.context_tokens, load.running)[::-1]
            price = (V * len(requests) + _urgency(needs, ms[0])) / ms[0]
            worth = [price * (ms[0] - each) - V * count for count, each in enumerate(ms)]
            held = tuple(free[: worth.index(max(worth))])
        self._held = {names[i] for i in held}
        if requests:
            self._held_share += MEMORY * (len(held) / len(requests) - self._held_share)
        return held

    def edges(self, requests: Sequence[DecodeRequest], plain_ms: float) -> Sequence[float] | None:
        needs = self._needs()
        if not needs:
            return None
        price = V + _urgency(needs, plain_ms) / len(requests)
        answers = (self._answers.get((request.tenant, request.request_id)) for request in requests)
        return [(V if answer is None else V + self._weight(answer)) / price for answer in answers]

    def terms(self, requests: Sequence[DecodeRequest], market: Market) -> Terms:
        behind = np.zeros(len(requests))
        urgency = 0.0
        for i, request in enumerate(requests):
            answer = self._answers.get((request.tenant, request.request_id))
            if answer is not None:
                behind[i] = self._weight(answer)
                urgency += behind[i] / answer.tpot_ms
        if not urgency:
            return Terms(None, Priced(market.rate(None)) if market.mixed else RATE)
        weights = V + behind
        # An objective out of reach would call time dearer than anything it can buy; nobody gets faster by waiting less.
        most = market.rate(weights)
        if V * market.plain + urgency >= most:
            return Terms(weights, Priced(most))
        return Terms(weights, Priced(min(V * market.rate(None) + urgency, most)))

    def follow(self, record: StepRecord) -> None:
        """Who is late is a matter of single steps, and of the time between them: an answer's is counted from the end of
        one step that it was in to the end of the next."""
        until_s = self._until_s = record.at_s + record.step_ms / 1e3
        told = []
        for row in record.rows:
            answer = self._answers.get((row.tenant, row.request_id))
            if answer is not None and not row.prefill_tokens and row.emitted + row.discarded:
                since_s = record.at_s if answer.until_s is None else answer.until_s
                answer.lag += 1e3 * (until_s - since_s) / answer.tpot_ms - row.emitted
                told.append(answer)
        for answer in told:  # once all rows are booked: the choices of a request share its answer
            answer.until_s = until_s
        if told:
            late = sum(max(answer.lag, 0.0) for answer in told) / len(told)
            self._behind += MEMORY * (late - self._behind)

    def observe(self, record: StepRecord) -> None:
        self._point.see(record)

    def describe(self) -> Mapping[str, Any]:
        answers = list(self._answers.values())
        return {
            "frontier": self._frontier,
            "objective": "tokens per ms, and TPOT objectives",
            "requests_with_objective": len(answers),
            "infeasible": sum(map(self._is_infeasible, answers)),
            "tokens_behind": round(self._behind, 3),
            "held_share": round(self._held_share, 3),
            "attainment": self._attainment,
            "presumed_behind": self._presumed.describe(),
            "point": self._point.describe(),
        }

    def _weight(self, answer: _Answer) -> float:
        presumed = self._presumed.tokens(answer.key)
        steepness = max(presumed / LEAD, 1.0) if answer.lag < 0.0 else 1.0
        return min(max(steepness * answer.lag + presumed, 0.0), self._most)

    def _needs(self) -> list[tuple[float, float]]:
        """Weight and objective, ms, of each that is behind."""
        found = [(self._weight(answer), answer.tpot_ms) for answer in self._answers.values()]
        return [each for each in found if each[0]]

    def _is_infeasible(self, answer: _Answer) -> bool:
        """Late with all the weight there is."""
        return answer.lag > 0.0 and self._weight(answer) >= self._most > 0.0


def _urgency(needs: Sequence[tuple[float, float]], ms: float) -> float:
    """What a plain step of `ms` costs those who are behind, but no more than its token gives them: an objective that
    plain steps can't keep would call time dearer than anything it can buy."""
    return sum(weight * min(ms / tpot_ms, 1.0) for weight, tpot_ms in needs)


class InteractivePolicy(AdaptivePolicy):
    """Objectives as far as the dial says. Who has none gives way, unless a bound is set on what it may lose."""

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        options = read_options(settings.options)
        bound = options.interference if "interference" in settings.options else None
        guard = PlainGuard(math.inf if bound is None else bound)
        self._interactive = Interactive(options)
        self._may_hold = settings.may_hold and bound is None
        super().__init__("interactive", settings, options, cost, aim=self._interactive, guard=guard)

    def plan(self, load: Load, requests: Sequence[DecodeRequest]) -> Plan:
        if self._costs is None or not self._may_hold:
            return super().plan(load, requests)
        self._interactive.meet(requests)
        held = self._interactive.hold(load, requests, self._costs)
        if not held:
            return super().plan(load, requests)
        context_tokens = load.context_tokens - sum(requests[i].context_tokens - 1 for i in held)
        rest = replace(load, running=load.running - len(held), context_tokens=max(context_tokens, 0))
        return replace(super().plan(rest, [r for i, r in enumerate(requests) if i not in held]), held=held)
