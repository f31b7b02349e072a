"""The bill of a measured run: every arm against the baseline, by class, at one load.

A request's device time is what the server attributes to it (prefill, drafting, verification, sampling, overhead);
where some arm's server tells no times, every turn's seconds are split by tokens instead, for all arms alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from decodeloop.evaluation.card import AcceptancePart
from decodeloop.evaluation.card_measures import acceptance
from decodeloop.evaluation.economics import (
    Delta,
    Money,
    capacity_usd_per_request,
    delta_of,
    marginal_usd,
    paired_delta,
    usd_per_million_tokens,
)
from decodeloop.evaluation.results import RequestResult, Results, Turn
from decodeloop.evaluation.statistics import ratio_of
from decodeloop.types import RequestClass, Slo

LOW_ACCEPTANCE = 0.5  # accepted / verified below which a class is listed as a tail, however small


class Source(StrEnum):
    """Where a request's device time comes from."""

    SERVER = "the server's own times, each step split over its requests"
    TOKENS = "wall time of the load, split over its requests by tokens (the servers tell no times)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Of one class under one arm. ms: attributed device time of a request. Tokens of a million: output, or total."""

    requests: int
    ms: float
    usd_per_request: float
    usd_per_million_output: float
    usd_per_million_total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassBill:
    """volume_share: of real traffic. tail: why the class is one to watch, or None."""

    request_class: RequestClass
    volume_share: float
    off: Cost
    on: Cost
    delta: Delta
    acceptance: AcceptancePart | None
    tail: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Sized to the load: what a request costs when devices are kept for it.

    goodput_per_s: requests that met the objectives (all that were served, without objectives).
    """

    goodput_per_s: float
    usd_per_request: float
    usd_per_million_output: float
    usd_per_million_total: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One arm against the baseline at one level. delta: marginal, weighted by volume. throughput: output rates.

    unmeasured: classes that have volume and no requests here: they are not in the delta.
    """

    arm: str
    baseline: str
    level: float
    source: Source
    delta: Delta
    throughput: Delta
    off: Capacity
    on: Capacity
    classes: tuple[ClassBill, ...]
    unmeasured: tuple[RequestClass, ...]

    @property
    def volume(self) -> dict[RequestClass, float]:
        return {each.request_class: each.volume_share for each in self.classes}

    @property
    def tails(self) -> tuple[ClassBill, ...]:
        return tuple(each for each in self.classes if each.tail is not None)


def bill(
    results: Results, arm: str, level: float, money: Money, slo: Slo | None = None, *, baseline: str | None = None
) -> Bill:
    """`arm` against `baseline` (None: the plan's first arm).

    Raises ValueError where they share no complete block at that level.
    """
    baseline = results.plan.arms[0].label if baseline is None else baseline
    if arm == baseline:
        raise ValueError(f"{arm} is the baseline: there is nothing to compare it with")
    run = _Priced(results, level, money, source_of(results))
    blocks = run.blocks
    volume = volumes(results)
    off, on = ([run.block_costs(name, block) for block in blocks] for name in (baseline, arm))
    measured = {c: w for c, w in volume.items() if all(c in costs for costs in (*off, *on))}
    if not measured:
        raise ValueError(f"no class was served by both {arm} and {baseline} in every block at level {level:g}")
    rates = [run.block_rate(arm, b) / run.block_rate(baseline, b) for b in blocks]
    total = sum(measured.values())
    return Bill(
        arm=arm,
        baseline=baseline,
        level=level,
        source=run.source,
        delta=paired_delta(measured, off, on),
        throughput=delta_of(ratio_of(np.log(np.array(rates)))),
        off=run.capacity(baseline, slo),
        on=run.capacity(arm, slo),
        classes=tuple(
            _class_bill(run, c, measured[c] / total, (baseline, arm), (off, on))
            for c in sorted(measured, key=lambda c: -measured[c])
        ),
        unmeasured=tuple(c for c in volume if c not in measured),
    )


def volumes(results: Results) -> dict[RequestClass, float]:
    """Each class's share of real volume: the workload's own shares, else the requests' weights."""
    if results.plan.workload.shares:
        return {RequestClass(c): share for c, share in results.plan.workload.shares.items() if share > 0.0}
    shares: dict[RequestClass, float] = {}
    for request in results.steady(arm=results.plan.arms[0].label):
        shares[request.request_class] = shares.get(request.request_class, 0.0) + request.weight
    whole = sum(shares.values())
    return {c: share / whole for c, share in shares.items()}


def source_of(results: Results) -> Source:
    whole = [r for r in results.steady() if r.error is None]
    return Source.SERVER if whole and all(r.times is not None for r in whole) else Source.TOKENS


def met(request: RequestResult, slo: Slo) -> bool:
    """Whether a request was answered whole, and as fast as its objectives ask."""
    if request.error is not None:
        return False
    in_time = slo.ttft_ms is None or (request.ttft_ms is not None and request.ttft_ms <= slo.ttft_ms)
    return in_time and (slo.tpot_ms is None or request.tpot_ms is None or request.tpot_ms <= slo.tpot_ms)


def request_ms(request: RequestResult) -> float:
    """What the server attributes to it; waiting takes no device."""
    times = request.times
    assert times is not None
    return times.prefill_ms + times.draft_ms + times.verify_ms + times.sample_ms + times.overhead_ms


class _Priced:
    """A level of a run, with every request's attributed time."""

    def __init__(self, results: Results, level: float, money: Money, source: Source) -> None:
        self.results, self.level, self.money, self.source = results, level, money, source
        self.blocks = results.complete_blocks(level)
        if not self.blocks:
            raise ValueError(f"no block was finished at level {level:g}")
        self._turns: dict[tuple[str, int], list[Turn]] = {}
        for turn in results.turns:
            if turn.level == level and turn.block in set(self.blocks):
                self._turns.setdefault((turn.arm, turn.block), []).append(turn)
        self._ms = {key: [pair for turn in turns for pair in self._of(turn)] for key, turns in self._turns.items()}

    def requests(self, arm: str, block: int | None = None) -> list[tuple[RequestResult, float]]:
        """Whole requests outside the ramps, with their ms; block None: of all."""
        return [pair for b in self.blocks if block in (None, b) for pair in self._ms.get((arm, b), ())]

    def block_costs(self, arm: str, block: int) -> dict[RequestClass, float]:
        """USD of a mean request of each class; classes whose requests took no time at all are left out."""
        found: dict[RequestClass, list[float]] = {}
        for request, ms in self.requests(arm, block):
            found.setdefault(request.request_class, []).append(ms)
        hour = self.money.usd_per_hour or 1.0  # a price of nothing still has ratios
        return {c: marginal_usd(hour, sum(ms) / len(ms)) for c, ms in found.items() if sum(ms) > 0.0}

    def block_rate(self, arm: str, block: int) -> float:
        """Output tokens a second, both turns together."""
        turns = self._turns[arm, block]
        seconds = sum(turn.seconds for turn in turns)
        return sum(turn.tokens for turn in turns) / seconds if seconds > 0.0 else 0.0

    def cost(self, arm: str, request_class: RequestClass) -> Cost:
        own = [(r, ms) for r, ms in self.requests(arm) if r.request_class is request_class]
        usd = [marginal_usd(self.money.usd_per_hour, ms) for _, ms in own]
        output = sum(r.completion_tokens for r, _ in own)
        prompt = [r.prompt_tokens for r, _ in own]
        total = math.nan if None in prompt else output + sum(p for p in prompt if p is not None)
        return Cost(
            requests=len(own),
            ms=sum(ms for _, ms in own) / len(own),
            usd_per_request=sum(usd) / len(own),
            usd_per_million_output=sum(usd) / output * 1e6 if output else math.inf,
            usd_per_million_total=sum(usd) / total * 1e6 if total else math.inf,
        )

    def capacity(self, arm: str, slo: Slo | None) -> Capacity:
        turns = [turn for block in self.blocks for turn in self._turns[arm, block]]
        seconds, output = sum(turn.seconds for turn in turns), sum(turn.tokens for turn in turns)
        own = [r for r, _ in self.requests(arm)]
        good = sum(slo is None or met(r, slo) for r in own) / seconds if seconds else 0.0
        made = sum(r.completion_tokens for r in own)
        prompts = sum(r.prompt_tokens or 0 for r in own)
        rate = output / seconds if seconds else 0.0
        hour = self.money.usd_per_hour
        return Capacity(
            goodput_per_s=good,
            usd_per_request=capacity_usd_per_request(hour, good),
            usd_per_million_output=usd_per_million_tokens(hour, rate),
            usd_per_million_total=usd_per_million_tokens(hour, rate * (1.0 + prompts / made) if made else 0.0),
        )

    def _of(self, turn: Turn) -> list[tuple[RequestResult, float]]:
        whole = [r for r in self.results.of(turn) if not r.ramp and r.error is None]
        if self.source is Source.SERVER:
            return [(r, request_ms(r)) for r in whole]
        tokens = [_forwarded(r) for r in whole]
        return [(r, 1e3 * turn.seconds * n / sum(tokens)) for r, n in zip(whole, tokens, strict=True)]


def _forwarded(request: RequestResult) -> int:
    """Tokens that the target read for it, as far as its server tells."""
    drafting = request.drafting
    wasted = 0 if drafting is None else drafting.verified - drafting.accepted
    read = (request.prompt_tokens or 0) - (request.cached_tokens or 0)
    return max(1, read + request.completion_tokens + wasted)


Pair = tuple[str, str]


def _class_bill(
    run: _Priced,
    request_class: RequestClass,
    share: float,
    arms: Pair,
    costs: tuple[Sequence[Mapping[RequestClass, float]], Sequence[Mapping[RequestClass, float]]],
) -> ClassBill:
    delta = paired_delta({request_class: 1.0}, *costs)
    accepted = acceptance([r for r, _ in run.requests(arms[1]) if r.request_class is request_class])
    return ClassBill(
        request_class=request_class,
        volume_share=share,
        off=run.cost(arms[0], request_class),
        on=run.cost(arms[1], request_class),
        delta=delta,
        acceptance=accepted,
        tail=_tail(delta, accepted),
    )


def _tail(delta: Delta, accepted: AcceptancePart | None) -> str | None:
    why = []
    if delta.share > 0.0:
        why.append("costs more" if delta.costs else "may cost more")
    if accepted is not None and accepted.rate is not None and accepted.rate < LOW_ACCEPTANCE:
        why.append(f"low acceptance ({100 * accepted.rate:.0f} % of verified tokens)")
    return ", ".join(why) or None
