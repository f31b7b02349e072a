"""Speed for one user against work per device: every measured point, and what can be had.

x is 1 / TPOT (tokens a second that one user sees), y output or total tokens a second per device. A frontier is a
staircase: what was measured can be had, what lies between two measured points was not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from decodeloop.evaluation.economics_run import met
from decodeloop.evaluation.results import LoadKind, RequestResult, Results
from decodeloop.evaluation.statistics import Share, attainment
from decodeloop.types import Slo

ATTAINMENTS = (0.90, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """An arm at a level.

    user_tokens_per_s: 1 / median TPOT. *_per_device: tokens a second. offered_per_s, served_per_s: requests that were
    sent, and answered whole. met_share: of the offered that met the objectives, clustered by block. dropped: share of
    the offered that got no whole answer. stall_ms: the longest wait of any user, for the first token or between pieces.
    """

    arm: str
    level: float
    user_tokens_per_s: float
    output_per_device: float
    total_per_device: float
    offered_per_s: float
    served_per_s: float
    met_share: Share | None
    dropped: float
    stall_ms: float
    requests: int

    @property
    def goodput_per_s(self) -> float | None:
        return None if self.met_share is None else self.offered_per_s * self.met_share.share


@dataclass(frozen=True, slots=True)
class Goodput:
    """Over OFFERED load: the most requests a second that met the objectives at a level that attained `attainment`.

    None: no level did.
    """

    arm: str
    attainment: float
    per_s: float | None
    at: Point | None


@dataclass(frozen=True, slots=True)
class Pick:
    """The level at which an arm does the most work among those that keep the objectives. None: none does."""

    arm: str
    point: Point | None


def points(results: Results, *, devices: int = 1, slo: Slo | None = None) -> list[Point]:
    """All arms at all levels that were measured, in the plan's order."""
    found = []
    for arm in results.plan.arms:
        for level in results.plan.levels:
            point = _point(results, arm.label, level, devices, slo)
            if point is not None:
                found.append(point)
    return found


def pareto(found: Iterable[Point], *, total: bool = False) -> list[Point]:
    """Points that no other beats in both, from the slowest for a user to the fastest."""
    kept: list[Point] = []
    for point in sorted(found, key=lambda p: (-p.user_tokens_per_s, -_work(p, total))):
        if not kept or _work(point, total) > _work(kept[-1], total):
            kept.append(point)
    return kept[::-1]


def stairs(found: Iterable[Point], *, total: bool = False) -> list[tuple[float, float]]:
    """Corners of the staircase: at a speed of x for each user, y is the most that a measured point gives.

    From x 0 on; no corner lies above what was measured at its x or beyond.
    """
    corners, x = [], 0.0
    for point in pareto(found, total=total):
        y = _work(point, total)
        corners += [(x, y), (point.user_tokens_per_s, y)]
        x = point.user_tokens_per_s
    return [*corners, (x, 0.0)] if corners else []


def best_work(found: Iterable[Point], user_tokens_per_s: float, *, total: bool = False) -> float | None:
    """The staircase's height at a speed; None beyond its end."""
    return max((_work(p, total) for p in found if p.user_tokens_per_s >= user_tokens_per_s), default=None)


def goodputs(found: Sequence[Point]) -> list[Goodput]:
    """For each arm and each of ATTAINMENTS. Empty without objectives."""
    rows = []
    for arm in dict.fromkeys(p.arm for p in found):
        for least in ATTAINMENTS:
            able = [p for p in found if p.arm == arm and p.met_share is not None and p.met_share.share >= least]
            best = max(able, key=lambda p: p.goodput_per_s or 0.0, default=None)
            rows.append(Goodput(arm, least, None if best is None else best.goodput_per_s, best))
    return rows if any(p.met_share is not None for p in found) else []


def picks(found: Sequence[Point], *, least: float = 0.95) -> list[Pick]:
    """What each arm would be run at: the most output per device with the objectives kept by a share of `least`."""
    chosen = []
    for arm in dict.fromkeys(p.arm for p in found):
        able = [p for p in found if p.arm == arm and (p.met_share is None or p.met_share.share >= least)]
        chosen.append(Pick(arm, max(able, key=lambda p: p.output_per_device, default=None)))
    return chosen


def _work(point: Point, total: bool) -> float:
    return point.total_per_device if total else point.output_per_device


def _point(results: Results, arm: str, level: float, devices: int, slo: Slo | None) -> Point | None:
    blocks = results.complete_blocks(level)
    turns = [t for t in results.turns if t.arm == arm and t.level == level and t.block in blocks]
    seconds = sum(turn.seconds for turn in turns)
    steady = [r for turn in turns for r in results.of(turn) if not r.ramp]
    whole = [r for r in steady if r.error is None]
    tpot = [r.tpot_ms for r in whole if r.tpot_ms]
    if not tpot or seconds <= 0.0:
        return None
    output = sum(turn.tokens for turn in turns) / seconds
    made = sum(r.completion_tokens for r in whole)
    prompts = sum(r.prompt_tokens or 0 for r in whole)
    offered = level if results.plan.load is LoadKind.OPEN else len(steady) / seconds
    return Point(
        arm=arm,
        level=level,
        user_tokens_per_s=1e3 / float(np.median(tpot)),
        output_per_device=output / devices,
        total_per_device=output * (1.0 + prompts / made) / devices if made else 0.0,
        offered_per_s=offered,
        served_per_s=len(whole) / seconds,
        met_share=None if slo is None else _met_share(steady, blocks, slo),
        dropped=1.0 - len(whole) / len(steady),
        stall_ms=max(_stall_ms(r) for r in whole),
        requests=len(steady),
    )


def _met_share(steady: Sequence[RequestResult], blocks: Sequence[int], slo: Slo) -> Share:
    served = {block: [r for r in steady if r.block == block] for block in blocks}
    return attainment([sum(met(r, slo) for r in own) for own in served.values()], [len(own) for own in served.values()])


def _stall_ms(request: RequestResult) -> float:
    return max((request.ttft_ms or 0.0, *request.gaps_ms))
