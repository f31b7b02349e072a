"""Time-per-output-token objectives, at the least cost in throughput.

Each request with an objective has a virtual queue of the tokens that it is behind,

    Z <- min(Z_most, max(0, Z + dt / TPOT - tokens)),

and a step maximises  sum_r (V + Z_r) E[tokens_r]  -  (V lambda + sum_r Z_r / TPOT_r) T  (drift plus penalty, Neely
2010), lambda being the rate that is attainable now. The second bracket is the price of time: while T passes, every
queue grows by T / TPOT, so who is late pays for long steps, whoever's tokens made them long. Without it the queues
diverge. V sets how many tokens late a request must be before it counts twice: a small V follows the luck of single
drafts. What trades objectives against throughput is Z_most, the most that lateness may weigh.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decodeloop.policy import PolicySettings
from decodeloop.policy.adaptive import AdaptivePolicy
from decodeloop.policy.aim import Market, Terms
from decodeloop.policy.allocate import Priced
from decodeloop.policy.frontier import Point
from decodeloop.policy.guard import PlainGuard
from decodeloop.policy.options import AdaptiveOptions, read_options
from decodeloop.policy.tracks import Track
from decodeloop.types import CostModel, DecodeRequest, Reason, StepRecord

V = 4.0  # tokens
Z_MOST = 64.0  # tokens, at the end of the dial
MEMORY = 0.02  # a step's weight in the reported point


class Interactive:
    """frontier: 0 ignores objectives (Z_most = 0: all throughput), 0.5 lets lateness weigh up to 5-fold, 1 17-fold."""

    reason = Reason.INTERACTIVE
    learn_every = 1  # who is late is a matter of single steps

    def __init__(self, options: AdaptiveOptions) -> None:
        self._frontier, self._default = options.frontier, options.tpot_ms
        self._most = min(4 * V * options.frontier / max(1.0 - options.frontier, 1e-9), Z_MOST)
        self._objectives: dict[tuple[str, str], float] = {}  # of the step at hand: (tenant, request) -> TPOT ms
        self._infeasible: set[tuple[str, str]] = set()
        self._behind = 0.0
        self._point = Point()

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        self._objectives = {
            (request.tenant, request.request_id): objective
            for request in requests
            if (objective := self._objective(request)) is not None
        }

    def heaviest(self, tracks: Sequence[Track]) -> float:
        return 1.0 + max((track.behind for track in tracks), default=0.0) / V

    def terms(self, requests: Sequence[DecodeRequest], tracks: Sequence[Track], market: Market) -> Terms:
        behind = np.zeros(len(requests))
        urgency = 0.0
        for i, request in enumerate(requests):
            objective = self._objectives.get((request.tenant, request.request_id))
            if objective is not None:
                behind[i] = tracks[i].behind
                urgency += behind[i] / objective
        weights, price = V + behind, V * market.rate(None) + urgency
        # An objective out of reach would call time dearer than anything it can buy; nobody gets faster by waiting less.
        return Terms(weights, Priced(min(price, market.rate(weights))))

    def observe(self, record: StepRecord, tracks: Sequence[Track]) -> None:
        pairs = zip(record.rows, tracks, strict=True)
        rows = [(row, track) for row, track in pairs if not row.prefill_tokens and row.emitted + row.discarded]
        late, infeasible = [], set()
        for row, track in rows:
            key = row.tenant, row.request_id
            objective = self._objectives.get(key)
            if objective is not None:
                grown = track.behind + record.step_ms / objective - (row.accepted + 1)
                track.behind = min(max(grown, 0.0), self._most)
                late.append(track.behind)
                if track.behind >= self._most > 0.0:
                    infeasible.add(key)
        self._infeasible = infeasible
        if late:
            self._behind += MEMORY * (float(np.mean(late)) - self._behind)
        self._point.see(record)

    def describe(self) -> Mapping[str, Any]:
        return {
            "frontier": self._frontier,
            "objective": "tokens per ms, and TPOT objectives",
            "requests_with_objective": len(self._objectives),
            "infeasible": len(self._infeasible),
            "tokens_behind": round(self._behind, 3),
            "point": self._point.describe(),
        }

    def _objective(self, request: DecodeRequest) -> float | None:
        return request.slo.tpot_ms if request.slo.tpot_ms is not None else self._default


class InteractivePolicy(AdaptivePolicy):
    """Objectives as far as the dial says. Requests without one give way: their bound is lifted unless one is set."""

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        options = read_options(settings.options)
        bound = options.interference if "interference" in settings.options else None
        guard = PlainGuard(math.inf if bound is None else bound)
        super().__init__("interactive", settings, options, cost, aim=Interactive(options), guard=guard)
