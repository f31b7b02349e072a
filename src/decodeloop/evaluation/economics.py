"""What serving costs: the formulas, each on one line, with its unit in its name.

Two views that answer different questions. *Capacity*: what a request costs when the fleet is sized to its load, device
price over goodput. *Marginal*: the device time that the request itself took. At a fixed load speculation saves nothing
unless the fleet shrinks; both are reported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from decodeloop.evaluation.prices import Price
from decodeloop.evaluation.statistics import Ratio, ratio_of

C = TypeVar("C")

S_PER_HOUR = 3600.0
MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """What an hour of the measured system costs. watts: its mean draw, where it was measured (None: not readable).

    usd_per_kwh applies only where the price of the device doesn't hold its power (own hardware); 0 for rented ones.
    pue: power usage effectiveness, what the building draws for each watt of the device.
    """

    price: Price
    devices: int = 1
    watts: float | None = None
    usd_per_kwh: float = 0.0
    pue: float = 1.0

    def __post_init__(self) -> None:
        if self.devices < 1 or self.usd_per_kwh < 0.0 or self.pue < 1.0:
            raise ValueError("devices and PUE are at least 1, the price of power at least 0")

    @property
    def usd_per_hour(self) -> float:
        return self.price.usd_per_hour * self.devices + power_usd_per_hour(self.watts, self.usd_per_kwh, self.pue)


def power_usd_per_hour(watts: float | None, usd_per_kwh: float, pue: float) -> float:
    return 0.0 if watts is None else watts / 1e3 * usd_per_kwh * pue


def usd_per_million_tokens(usd_per_hour: float, tokens_per_s: float) -> float:
    """usd_per_hour: of all devices that give this rate. Say which tokens: output or total."""
    return usd_per_hour / (S_PER_HOUR * tokens_per_s) * MILLION if tokens_per_s > 0.0 else math.inf


def capacity_usd_per_request(usd_per_hour: float, goodput_per_s: float) -> float:
    """goodput_per_s: requests a second that met their objectives."""
    return usd_per_hour / (S_PER_HOUR * goodput_per_s) if goodput_per_s > 0.0 else math.inf


def marginal_usd(usd_per_hour: float, attributed_ms: float) -> float:
    return usd_per_hour / S_PER_HOUR * attributed_ms / 1e3


def devices_needed(requests_per_s: float, goodput_per_s_per_device: float) -> int:
    """Whole ones: what a fixed load saves comes in devices that are given back."""
    if goodput_per_s_per_device <= 0.0:
        raise ValueError("a device without goodput serves no load, however many there are")
    return max(1, math.ceil(requests_per_s / goodput_per_s_per_device - 1e-9))


def volume_weighted_delta(volume: Mapping[C, float], off: Mapping[C, float], on: Mapping[C, float]) -> float:
    """Sum of w (C_on - C_off) over sum of w C_off: -0.2 is a fifth saved.

    volume: requests of each class that really come in (any unit). off, on: cost of one request of it.
    Raises ValueError where a class that has volume has no cost.
    """
    lacking = [c for c, weight in volume.items() if weight > 0.0 and (c not in off or c not in on)]
    if lacking:
        raise ValueError(f"no measured cost of {', '.join(str(c) for c in lacking)}")
    before = sum(weight * off[c] for c, weight in volume.items() if weight > 0.0)
    if not before > 0.0:
        raise ValueError("nothing was spent before: there is no share of it to save")
    return sum(weight * (on[c] - off[c]) for c, weight in volume.items() if weight > 0.0) / before


@dataclass(frozen=True, slots=True)
class Delta:
    """share: of the former cost, negative is saved. low, high: its interval over blocks. blocks: that it is of."""

    share: float
    low: float
    high: float
    blocks: int

    @property
    def saves(self) -> bool:
        return self.high < 0.0

    @property
    def costs(self) -> bool:
        return self.low > 0.0


def paired_delta(
    volume: Mapping[C, float],
    off: Sequence[Mapping[C, float]],
    on: Sequence[Mapping[C, float]],
    *,
    level: float = 0.95,
) -> Delta:
    """The volume-weighted delta over blocks: per block the ratio of bills, as a geometric mean with a t interval.

    off, on: [blocks] class -> cost of a request there.
    """
    if len(off) != len(on) or not off:
        raise ValueError(f"{len(off)} blocks without and {len(on)} with speculation are no pairs")
    ratios = [1.0 + volume_weighted_delta(volume, a, b) for a, b in zip(off, on, strict=True)]
    if any(not (ratio > 0.0 and math.isfinite(ratio)) for ratio in ratios):
        raise ValueError("a block with a bill of nothing, or without end, has no ratio")
    return delta_of(ratio_of(np.log(np.array(ratios)), level=level))


def delta_of(ratio: Ratio) -> Delta:
    return Delta(ratio.ratio - 1.0, ratio.low - 1.0, ratio.high - 1.0, ratio.blocks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Margin:
    """Of a request, in USD: price - cost - other_share (of the price: payment, support, licences)."""

    price: float
    cost: float
    other_share: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.other_share <= 1.0:
            raise ValueError(f"other_share is a part of the price, from 0 to 1, not {self.other_share}")

    @property
    def usd(self) -> float:
        return self.price - self.cost - self.other_share * self.price

    @property
    def share(self) -> float:
        return self.usd / self.price if self.price > 0.0 else -math.inf


@dataclass(frozen=True, slots=True)
class Swing(Generic[C]):
    """One assumption moved both ways, everything else held. at_low, at_high: the figure then."""

    name: C
    low: str
    high: str
    at_low: float
    at_high: float

    @property
    def span(self) -> float:
        return abs(self.at_high - self.at_low)


def mix_swings(
    volume: Mapping[C, float], off: Mapping[C, float], on: Mapping[C, float], *, factor: float = 2.0
) -> list[Swing[C]]:
    """The delta when a class's volume is `factor` times less or more, the widest swing first."""
    swings = []
    for c, weight in volume.items():
        less = volume_weighted_delta({**volume, c: weight / factor}, off, on)
        more = volume_weighted_delta({**volume, c: weight * factor}, off, on)
        swings.append(Swing(c, f"volume / {factor:g}", f"volume x {factor:g}", less, more))
    return sorted(swings, key=lambda swing: -swing.span)


def break_even_factor(volume: Mapping[C, float], off: Mapping[C, float], on: Mapping[C, float], c: C) -> float | None:
    """How many times its volume class `c` needs for the delta to be 0; None: no volume of it does that."""
    own = volume[c] * (on[c] - off[c])
    rest = sum(weight * (on[d] - off[d]) for d, weight in volume.items() if d != c and weight > 0.0)
    if own == 0.0 or rest == 0.0 or (own > 0.0) == (rest > 0.0):
        return None
    return -rest / own
