"""Which server gets a request: models, pools, and the servers in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from operator import is_not

from msgspec import Struct

from decodeloop.gateway.breaker import BreakerSettings
from decodeloop.gateway.pools import Lease, Member, PoolSettings, PoolState
from decodeloop.gateway.upstreams import ModelCard, RelayUpstream, Upstream
from decodeloop.governance.certificate import Certificate
from decodeloop.types import RequestRefused
from decodeloop.types.routing import Pool, Route, RouteReason, RouteRequest

__all__ = ["Asked", "Fleet", "Router", "idlest"]

Router = Callable[[RouteRequest, Sequence[Pool]], Route]

EVERYTHING = "default"  # the pool of a gateway that was given none
_UNSCORED: Mapping[str, float] = {}


class Asked(Struct, frozen=True, kw_only=True):
    """What the choice depends on. fields: the body's that ask for something. prefix: of the prompt, hashed. ttft_ms:
    how soon its first token is wanted."""

    model: str
    route: RouteRequest
    fields: frozenset[str] = frozenset()
    prefix: Callable[[], bytes] = bytes
    ttft_ms: float | None = None


def idlest(request: RouteRequest, pools: Sequence[Pool]) -> Route:
    """A router that knows nothing of policies: the pool with the fewest requests a server."""
    busy = {pool.name: 1.0 / (1.0 + pool.load.running + pool.load.waiting) for pool in pools}
    if request.pool in busy and request.may_choose:
        return Route(request.pool, RouteReason.OVERRIDE, busy)
    best = max(busy, key=lambda name: busy[name])
    return Route(best, RouteReason.ONLY if len(pools) == 1 else RouteReason.NO_GAIN, busy, request.pool is not None)


class Fleet:
    """Upstreams by name, in pools; without `pools` all of them are one."""

    def __init__(
        self,
        upstreams: Mapping[str, Upstream | RelayUpstream],
        pools: Mapping[str, PoolSettings] | None = None,
        *,
        route: Router = idlest,
        breaker: BreakerSettings | None = None,
        certificates: Mapping[str, Certificate] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """certificates: by pool, whose signatures were checked."""
        if not upstreams:
            raise ValueError("a gateway needs at least one upstream")
        pools = pools or {EVERYTHING: PoolSettings(upstreams=tuple(upstreams))}
        unknown = {name for pool in pools.values() for name in pool.upstreams} - upstreams.keys()
        if unknown:
            raise ValueError(f"no upstream {', '.join(sorted(unknown))}; choose from {', '.join(upstreams)}")
        self.upstreams = dict(upstreams)
        self.members = {
            name: Member(name, upstream, breaker or BreakerSettings()) for name, upstream in upstreams.items()
        }
        self.pools = {
            name: PoolState(
                name,
                settings,
                [self.members[each] for each in settings.upstreams],
                clock,
                (certificates or {}).get(name),
            )
            for name, settings in pools.items()
        }
        self._route = route
        self._told: Sequence[Sequence[ModelCard]] = ()
        self._cards: Mapping[str, ModelCard] = {}  # of what was told
        self._relays = any(member.relay is not None for member in self.members.values())

    @property
    def relays(self) -> bool:
        """Whether some of it reads bodies by itself."""
        return self._relays

    async def start(self) -> None:
        """Start all; when one fails, those already started are closed again."""
        started: list[Upstream | RelayUpstream] = []
        try:
            for upstream in self.upstreams.values():
                await upstream.start()
                started.append(upstream)
        except BaseException:
            for upstream in started:
                await upstream.close()
            raise

    async def close(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.close()

    def ready(self) -> bool:
        """Whether every model that is known can be served by someone."""
        up = {card.id for upstream in self.upstreams.values() if upstream.ready() for card in upstream.models()}
        return bool(up) and all(card.id in up for card in self.cards())

    def cards(self) -> list[ModelCard]:
        """One card a model id."""
        return list(self._by_id().values())

    def _by_id(self) -> Mapping[str, ModelCard]:
        told = [upstream.models() for upstream in self.upstreams.values()]
        if len(told) != len(self._told) or any(map(is_not, told, self._told)):
            self._told, self._cards = told, {card.id: card for cards in told for card in cards}
        return self._cards

    def default_model(self) -> str:
        """What a request without `model` gets."""
        return next(iter(self._by_id()), "")

    def card(self, model: str) -> ModelCard:
        cards = self._by_id()
        if model in cards:
            return cards[model]
        if not cards:
            raise RequestRefused("no upstream has said yet which models it serves", status=503, code="not_ready")
        choices = ", ".join(cards)
        raise RequestRefused(
            f"no model {model[:100]!r} here; choose from: {choices}", status=404, param="model", code="model_not_found"
        )

    def choose(self, asked: Asked, tried: Collection[str] = ()) -> tuple[Route, Lease]:
        """The way of a request, to a server not yet tried. The caller ends the lease. Raises as `route`."""
        up, free = self._up(asked, tried)
        route = _only(asked.route, up[0].name) if len(up) == 1 else self._routed(asked, up)
        return route, self.pools[route.pool].lease(free[route.pool], asked.prefix)

    def can_serve(self, model: str) -> bool:
        return any(pool.candidates(model) for pool in self.pools.values())

    def route(self, asked: Asked, tried: Collection[str] = ()) -> Route:
        """The pool, and why.

        Raises:
            RequestRefused: 404 for an unknown model, 400 when no pool takes its fields or is as lossless as it demands,
                503 when none that serves it is ready.
        """
        return self._routed(asked, self._up(asked, tried)[0])

    def _up(self, asked: Asked, tried: Collection[str]) -> tuple[Sequence[PoolState], Mapping[str, Sequence[Member]]]:
        """Where it may go: pools, and by pool the servers that may have it. Raises as `route`."""
        self.card(asked.model)
        if asked.route.speculation.lossless:
            able = self._able(asked)
        else:
            able = [pool for pool in self.pools.values() if pool.refuses.isdisjoint(asked.fields)]
        free = {pool.name: pool.candidates(asked.model, tried) for pool in able}
        up = [pool for pool in able if free[pool.name]]
        if not up:
            self._able(asked)
            raise RequestRefused("the model is not ready yet", status=503, code="not_ready")
        return up, free

    def _routed(self, asked: Asked, up: Sequence[PoolState]) -> Route:
        ttft_ms = asked.ttft_ms
        if ttft_ms is None:
            return self._route(asked.route, [pool.view() for pool in _with_room(up)])
        soon = [pool for pool in up if pool.begins_within(ttft_ms)] or up
        route = self._route(asked.route, [pool.view() for pool in _with_room(soon)])
        return replace(route, reason=RouteReason.SLO) if len(soon) < len(up) else route

    def _able(self, asked: Asked) -> list[PoolState]:
        """The pools that serve the model, take the fields and are as lossless as is demanded, up or not."""
        takers = [pool for pool in self.pools.values() if any(member.serves(asked.model) for member in pool.members)]
        able = [pool for pool in takers if pool.refuses.isdisjoint(asked.fields)]
        if takers and not able:
            refused = sorted(asked.fields & frozenset().union(*(pool.refuses for pool in takers)))
            raise RequestRefused(
                f"no pool that serves {asked.model!r} takes {', '.join(refused)}",
                param=refused[0],
                code="unsupported_parameter",
            )
        demand = asked.route.speculation.lossless
        return _lossless(able, asked.model, demand) if demand else able


def _only(request: RouteRequest, pool: str) -> Route:
    """What every router says of one pool, without its load being worked out."""
    is_named = request.pool == pool and request.may_choose
    denied = request.pool is not None and not request.may_choose
    return Route(pool, RouteReason.OVERRIDE if is_named else RouteReason.ONLY, _UNSCORED, denied)


def _lossless(pools: Sequence[PoolState], model: str, demand: str) -> list[PoolState]:
    standings = {pool.name: pool.standing() for pool in pools}
    found = [pool for pool in pools if standings[pool.name].losslessness.meets(demand)]
    if pools and not found:
        known = "; ".join(f"{name} is {each.losslessness.value} ({each.why})" for name, each in standings.items())
        raise RequestRefused(
            f"no pool that serves {model!r} is {demand} lossless: {known}",
            param="decodeloop.lossless",
            code="not_lossless",
        )
    return found


def _with_room(pools: Sequence[PoolState]) -> Sequence[PoolState]:
    return [pool for pool in pools if not pool.is_full()] or pools
