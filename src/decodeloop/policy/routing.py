"""Which pool suits a request: by class, entropy and load against each pool's own measured cliff.

An adaptive pool needs no routing for speculation's sake; the choice matters where pools speculate always or never, as
engines do that have no switch per request.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from decodeloop.types import SpeculationMode
from decodeloop.types.routing import Pool, Regime, Route, RouteReason, RouteRequest

UNPREDICTABLE = 3.0  # nats a token, from which half of a class's gain is not believed
WORTH = 1.02  # of plain: smaller gains decide nothing


def route(request: RouteRequest, pools: Sequence[Pool]) -> Route:
    """pools: those that are up and can serve the request.

    Raises:
        ValueError: there are none.
    """
    if not pools:
        raise ValueError("no pool can serve the request")
    scores = {pool.name: _speed(request, pool) for pool in pools}
    names = [pool.name for pool in pools]
    if request.pool in names and request.may_choose:
        return Route(request.pool, RouteReason.OVERRIDE, scores)
    denied = request.pool is not None and not request.may_choose
    if len(pools) == 1:
        return Route(names[0], RouteReason.ONLY, scores, denied)
    wanted = _wanted(request, pools)
    best = max(wanted or pools, key=lambda pool: scores[pool.name])
    return Route(best.name, RouteReason.USER if wanted else _why(request, best), scores, denied)


def gain(request: RouteRequest, pool: Pool) -> float:
    """Speed of the class in this pool against plain decoding at the same load; 1 where nothing was measured."""
    measured = pool.gains.get(request.request_class)
    if pool.regime is Regime.PLAIN or not measured:
        return 1.0
    loads, gains = zip(*measured, strict=True)
    found = float(np.interp(pool.load.running + 1, loads, gains)) * _drifted(request, pool)
    believed = 1.0 / (1.0 + (request.entropy or 0.0) / UNPREDICTABLE) if found > 1.0 else 1.0
    found = 1.0 + (found - 1.0) * believed
    return max(found, 1.0) if pool.regime is Regime.ADAPTIVE else found


def _drifted(request: RouteRequest, pool: Pool) -> float:
    """How tokens a step have changed with acceptance since the gains were measured, by the first draft token alone."""
    recent, measured = pool.acceptance.get(request.request_class, (0.0, 0.0))
    return (1.0 + recent) / (1.0 + measured)


def _speed(request: RouteRequest, pool: Pool) -> float:
    """A queue is waited for by everyone behind it: it counts as so many more to share with."""
    load = pool.load
    return gain(request, pool) / (1.0 + load.waiting / max(load.running, 1))


def _wanted(request: RouteRequest, pools: Sequence[Pool]) -> list[Pool]:
    """The pools that do what the caller asks of speculation; empty when it leaves that to us, or none does."""
    mode = request.speculation.mode
    if mode is SpeculationMode.OFF:
        return [pool for pool in pools if pool.regime is not Regime.FIXED]
    if mode is SpeculationMode.FORCE:
        return [pool for pool in pools if pool.regime is not Regime.PLAIN]
    return []


def _why(request: RouteRequest, pool: Pool) -> RouteReason:
    if pool.regime is not Regime.PLAIN and gain(request, pool) >= WORTH:
        return RouteReason.GAIN
    calm = RouteRequest(request_class=request.request_class)
    return RouteReason.ENTROPY if request.entropy and gain(calm, pool) >= WORTH else RouteReason.NO_GAIN
