"""Time-per-output-token objectives, at the least cost in throughput.

Each request with an objective has a virtual queue of the tokens that it is behind,

    Z <- min(Z_MOST, max(0, Z + dt / TPOT - tokens)),

and a step maximises  sum_r (V + Z_r) E[tokens_r]  -  (V lambda + sum_r Z_r / TPOT_r) T  (drift plus penalty, Neely
2010), lambda being the rate that is attainable now. The second bracket is the price of time: while T passes, every
queue grows by T / TPOT, so who is late pays for long steps, whoever's tokens made them long. Without it the queues
diverge.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from decodeloop.policy import Policy, PolicySettings
from decodeloop.policy.adaptive import AdaptivePolicy
from decodeloop.policy.aim import Market, Terms
from decodeloop.policy.allocate import Priced
from decodeloop.policy.guard import PlainGuard
from decodeloop.policy.options import AdaptiveOptions, read_options
from decodeloop.policy.tracks import Tracks
from decodeloop.types import CostModel, DecodeRequest, Reason, StepRecord

Z_MOST = 32.0  # tokens; a queue that long is not to be emptied here
LEAST_V = 0.02  # all for objectives still prefers more tokens to fewer
MEMORY = 0.02  # a step's weight in the reported point


class Interactive:
    """The frontier dial: 0 ignores objectives (V = 1), 1 serves nothing else (V = LEAST_V, queues count fully)."""

    reason = Reason.INTERACTIVE

    def __init__(self, options: AdaptiveOptions) -> None:
        self._frontier, self._default = options.frontier, options.tpot_ms
        self._objectives: dict[tuple[str, str], float] = {}  # of the step at hand: (tenant, request) -> TPOT ms
        self._infeasible: set[tuple[str, str]] = set()
        self._behind = 0.0
        self._total_rate = self._user_rate = 0.0  # tokens a ms, of the engine and of one of its users

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        self._objectives = {
            (request.tenant, request.request_id): objective
            for request in requests
            if (objective := self._objective(request)) is not None
        }

    def terms(self, requests: Sequence[DecodeRequest], tracks: Tracks, market: Market) -> Terms:
        v = max(1.0 - self._frontier, LEAST_V)
        behind = np.zeros(len(requests))
        urgency = 0.0
        for i, request in enumerate(requests):
            objective = self._objectives.get((request.tenant, request.request_id))
            if objective is not None:
                behind[i] = self._frontier * tracks.of(request.tenant, request.request_id).behind
                urgency += behind[i] / objective
        return Terms(v + behind, Priced(v * market.rate() + urgency))

    def observe(self, record: StepRecord, tracks: Tracks) -> None:
        rows = [row for row in record.rows if not row.prefill_tokens and row.emitted + row.discarded]
        late, infeasible = [], set()
        for row in rows:
            key = row.tenant, row.request_id
            objective = self._objectives.get(key)
            if objective is not None:
                track = tracks.of(*key)
                grown = track.behind + record.step_ms / objective - (row.accepted + 1)
                track.behind = min(max(grown, 0.0), Z_MOST)
                late.append(track.behind)
                if track.behind >= Z_MOST:
                    infeasible.add(key)
        self._infeasible = infeasible
        if late:
            self._behind += MEMORY * (float(np.mean(late)) - self._behind)
        if rows and record.step_ms > 0.0:
            rate = sum(row.accepted + 1 for row in rows) / record.step_ms
            self._total_rate += MEMORY * (rate - self._total_rate)
            self._user_rate += MEMORY * (rate / len(rows) - self._user_rate)

    def describe(self) -> Mapping[str, Any]:
        return {
            "frontier": self._frontier,
            "objective": "tokens per ms, and TPOT objectives",
            "requests_with_objective": len(self._objectives),
            "infeasible": len(self._infeasible),
            "tokens_behind": round(self._behind, 3),
            "point": {
                "tokens_per_s": round(1e3 * self._total_rate, 2),
                "tokens_per_s_per_user": round(1e3 * self._user_rate, 2),
            },
        }

    def _objective(self, request: DecodeRequest) -> float | None:
        return request.slo.tpot_ms if request.slo.tpot_ms is not None else self._default


def interactive(settings: PolicySettings, cost: CostModel | None = None) -> Policy:
    """Objectives first, as far as the dial says; nobody is slowed below plain decoding beyond the bound."""
    options = read_options(settings.options)
    bound = math.inf if options.interference is None else options.interference
    return AdaptivePolicy("interactive", settings, options, cost, aim=Interactive(options), guard=PlainGuard(bound))
