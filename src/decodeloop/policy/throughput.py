"""Most tokens per millisecond."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from decodeloop.policy import PolicySettings
from decodeloop.policy.adaptive import AdaptivePolicy
from decodeloop.policy.aim import Market, Terms
from decodeloop.policy.allocate import RATE, Priced
from decodeloop.policy.frontier import Point
from decodeloop.policy.guard import PlainGuard, Watch
from decodeloop.policy.options import read_options
from decodeloop.types import CostModel, DecodeRequest, Reason, StepRecord


class Throughput:
    """Every token counts the same. While prompts share the step, time is worth what decoding alone would earn with it:
    the rate of the mixed step would call it cheap, and the prompts would wait for it."""

    reason = Reason.THROUGHPUT

    def __init__(self) -> None:
        self._point = Point()

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        """Whoever they are."""

    def edges(self, requests: Sequence[DecodeRequest], plain_ms: float) -> None:
        """All are equal."""

    def terms(self, requests: Sequence[DecodeRequest], market: Market) -> Terms:
        return Terms(None, Priced(market.rate(None)) if market.mixed else RATE)

    def follow(self, record: StepRecord) -> None:
        """Nothing is owed to anyone."""

    def observe(self, record: StepRecord) -> None:
        self._point.see(record)

    def describe(self) -> Mapping[str, Any]:
        return {"frontier": 0.0, "objective": "tokens per ms", "point": self._point.describe()}


class ThroughputPolicy(AdaptivePolicy):
    """Most tokens in total, whoever gets them: no guard, and no interference bound unless one is set."""

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        options = read_options(settings.options)
        bound = options.interference if "interference" in settings.options else None
        watch = Watch(math.inf if bound is None else bound)
        super().__init__("throughput", settings, options, cost, aim=Throughput(), guard=watch)


class PlainGuardedPolicy(AdaptivePolicy):
    """`adaptive`: most tokens, but nobody is slowed below plain decoding."""

    def __init__(self, settings: PolicySettings, cost: CostModel | None = None) -> None:
        options = read_options(settings.options)
        bound = math.inf if options.interference is None else options.interference
        super().__init__("adaptive", settings, options, cost, aim=Throughput(), guard=PlainGuard(bound))
