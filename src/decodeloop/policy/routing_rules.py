"""The field's rules of thumb as a router: the baseline that `routing.route` has to beat."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.policy.reference import HIGH_LOAD, HOT, LOW_ACCEPTANCE, PREDICTABLE
from decodeloop.types import RequestClass, SpeculationMode
from decodeloop.types.routing import Pool, Regime, Route, RouteReason, RouteRequest


def route_by_rules(request: RouteRequest, pools: Sequence[Pool]) -> Route:
    """Five rules, in this order: high load, off; what the caller asked; creative and hot, off; predictable, on; low
    recent acceptance, off. Else on. scores: 1 for the pools that the rules want, 0 for the others.

    Raises:
        ValueError: there are no pools.
    """
    if not pools:
        raise ValueError("no pool can serve the request")
    names = [pool.name for pool in pools]
    if request.pool in names and request.may_choose:
        return Route(request.pool, RouteReason.OVERRIDE, dict.fromkeys(names, 1.0))
    denied = request.pool is not None and not request.may_choose
    speculating = [pool for pool in pools if pool.regime is not Regime.PLAIN]
    plain = [pool for pool in pools if pool.regime is Regime.PLAIN]
    on, reason = _wants(request, speculating)
    wanted = (speculating if on else plain) or list(pools)
    best = min(wanted, key=lambda pool: pool.load.running + pool.load.waiting)
    scores = {pool.name: float(pool in wanted) for pool in pools}
    return Route(best.name, RouteReason.ONLY if len(pools) == 1 else reason, scores, denied)


def _wants(request: RouteRequest, speculating: Sequence[Pool]) -> tuple[bool, RouteReason]:
    """Whether to speculate, and why."""
    if all(pool.load.running >= HIGH_LOAD for pool in speculating):
        return False, RouteReason.NO_GAIN
    if request.speculation.mode is not SpeculationMode.AUTO:
        return request.speculation.mode is SpeculationMode.FORCE, RouteReason.USER
    if request.request_class is RequestClass.CREATIVE_WRITING and (request.temperature or 0.0) > HOT:
        return False, RouteReason.ENTROPY
    if request.request_class in PREDICTABLE:
        return True, RouteReason.GAIN
    recent = [pool.acceptance.get(request.request_class, (1.0, 1.0))[0] for pool in speculating]
    low = max(recent, default=1.0) < LOW_ACCEPTANCE
    return not low, RouteReason.NO_GAIN if low else RouteReason.GAIN
