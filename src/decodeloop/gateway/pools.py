"""Pools: sets of servers with one serving regime, and which of them gets a request."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from decodeloop.gateway.breaker import Breaker, BreakerSettings
from decodeloop.gateway.losslessness import SILENT, Declared, Standing, Told, standing_of, told_by_policy
from decodeloop.gateway.upstreams import ModelCard, RelayUpstream, Upstream
from decodeloop.gateway.upstreams.remote import RemoteUpstream
from decodeloop.governance.capability import Place
from decodeloop.governance.certificate import Certificate
from decodeloop.types import Load, RequestClass
from decodeloop.types.routing import Losslessness, Pool, Regime

__all__ = ["Lease", "Member", "PoolSettings", "PoolState"]

LATELY_S = 10.0  # that what was heard of a server counts
LOOK_S = 1.0  # between looks at what servers tell of their configuration
AFFINITY_SLACK = 1  # requests more than the idlest server's: so much a warm prefix is worth waiting for


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """upstreams: names. methods, losslessness: as declared, where its servers don't tell. certificate: a file.
    gains: per class, [load, speed against plain] pairs as measured, ascending in load. refuses: body fields that its
    engines can't take, beside what they are known to refuse."""

    upstreams: tuple[str, ...]
    regime: Regime = Regime.ADAPTIVE
    methods: tuple[str, ...] = ()
    losslessness: Losslessness = Losslessness.UNKNOWN
    certificate: str | None = None
    batch_ceiling: int | None = None  # requests in flight on each of its servers, above which others are preferred
    refuses: tuple[str, ...] = ()
    gains: Mapping[RequestClass, tuple[tuple[int, float], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.upstreams:
            raise ValueError("a pool needs at least one upstream")
        if self.batch_ceiling is not None and self.batch_ceiling < 1:
            raise ValueError("batch_ceiling must be at least 1")
        if self.losslessness is Losslessness.CERTIFIED and self.certificate is None:
            raise ValueError("losslessness certified needs its certificate; without one it is claimed")
        if self.losslessness is Losslessness.PLAIN and self.regime is not Regime.PLAIN:
            raise ValueError(f"losslessness plain goes with regime plain, not {self.regime.value}")
        for name, points in self.gains.items():
            loads = [load for load, _ in points]
            if loads != sorted(set(loads)):
                raise ValueError(f"gains of {name}: loads must ascend")


class Member:
    """One server, in whichever pools it is. The owner of its count of requests in flight.

    It is either `own`, which takes requests in our terms, or a `relay`; the other is None.
    """

    def __init__(self, name: str, upstream: Upstream | RelayUpstream, breaker: BreakerSettings) -> None:
        self.name, self.upstream = name, upstream
        self.relay = upstream if isinstance(upstream, RelayUpstream) else None
        self.own = None if isinstance(upstream, RelayUpstream) else upstream
        self.breaker = Breaker(breaker)
        self.in_flight = 0
        self._told: Load | None = None  # the report on which the others' share was last worked out
        self._others = 0
        self._said, self._is_told = SILENT, False
        self._first_s, self._heard_s = 0.0, -math.inf
        self._listed: Sequence[ModelCard] = ()
        self._models: frozenset[str] = frozenset()  # of that list
        self.turn = 0  # of the last request that it was given

    def heard(self, ttft_s: float | None, now_s: float) -> None:
        """How long its answer's first token took; an old memory counts for nothing."""
        if ttft_s is not None:
            self._first_s = ttft_s if self.first_s(now_s) is None else 0.75 * self._first_s + 0.25 * ttft_s
            self._heard_s = now_s

    def first_s(self, now_s: float) -> float | None:
        """Until first tokens, of late; None: not known."""
        return self._first_s if now_s - self._heard_s <= LATELY_S else None

    def told(self) -> Told:
        """What it says of its own configuration."""
        if isinstance(self.upstream, RemoteUpstream):
            return self.upstream.told()
        if self.own is not None and not self._is_told:
            view = self.own.describe()  # it costs too much to be asked again: it won't change
            self._said, self._is_told = told_by_policy(view), view.get("regime", view) is not None
        return self._said

    def load(self) -> Load:
        """The server's own report, corrected by what was sent since: a report is seconds old, our counts are not."""
        told = self.upstream.load()
        if self.relay is None:
            return told
        self._look(told)
        busy = self.in_flight + self._others
        waiting = min(told.waiting, busy)
        return Load(busy - waiting, waiting, told.context_tokens, told.kv_free_fraction)

    def enter(self) -> None:
        self._look(self.upstream.load())
        self.in_flight += 1

    def leave(self) -> None:
        self._look(self.upstream.load())
        self.in_flight -= 1

    def _look(self, told: Load) -> None:
        """Before our own count changes: a new report tells of that count and of others' requests together."""
        if told is not self._told:
            self._told, self._others = told, max(0, told.running + told.waiting - self.in_flight)

    def busy(self) -> int:
        load = self.load()
        return max(load.running + load.waiting, self.in_flight)

    def serves(self, model: str) -> bool:
        listed = self.upstream.models()
        if listed is not self._listed:
            self._listed, self._models = listed, frozenset(card.id for card in listed)
        return model in self._models


class Lease:
    """A request on its way to a server: counted from here to `end`, however it ends."""

    def __init__(self, pool: PoolState, member: Member, clock: Callable[[], float]) -> None:
        self.pool, self.member, self._clock = pool, member, clock
        self._judged = self._ended = False
        member.enter()
        member.breaker.begin()

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()

    def end(self) -> None:
        """Again does nothing."""
        if self._ended:
            return
        self._ended = True
        self.member.leave()
        if not self._judged:
            self.member.breaker.released()

    def succeeded(self) -> None:
        self._judge()
        self.member.breaker.succeeded()

    def full(self, retry_after_s: float | None) -> None:
        self._judge()
        self.member.breaker.full(self._clock(), retry_after_s)

    def failed(self) -> None:
        self._judge()
        self.member.breaker.failed(self._clock())

    def _judge(self) -> None:
        assert not self._judged, "a lease is judged once"
        self._judged = True


class PoolState:
    def __init__(
        self,
        name: str,
        settings: PoolSettings,
        members: Sequence[Member],
        clock: Callable[[], float],
        certificate: Certificate | None = None,
    ) -> None:
        self.name, self.settings, self.members = name, settings, members
        self._clock = clock
        self._declared = Declared(settings.regime, settings.losslessness, settings.methods, certificate)
        self._turns = 0
        self._looked_s = -math.inf
        self._standing = Standing(Losslessness.UNKNOWN, "")
        self._places: dict[str, Place] = {}
        self.regime = blake2b(repr(settings).encode(), digest_size=8).hexdigest()  # the ledger's name of it
        self.refuses = frozenset(settings.refuses)
        if settings.regime is not Regime.PLAIN:
            for member in members:
                if isinstance(member.upstream, RemoteUpstream):
                    self.refuses |= member.upstream.dialect.refuses_speculating

    def view(self) -> Pool:
        """As routing sees it: per server, since that is what a request shares."""
        loads = [member.load() for member in self.members if member.upstream.ready()] or [Load(0, 0, 0, 1.0)]
        load = loads[0] if len(loads) == 1 else _mean(loads)
        return Pool(name=self.name, regime=self.settings.regime, load=load, gains=self.settings.gains)

    def standing(self) -> Standing:
        """What is known of its losslessness; looked at anew every second."""
        now_s = self._clock()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s, self._places = now_s, {}
            told = {member.name: member.told() for member in self.members}
            if self.settings.regime is Regime.PLAIN:  # an engine of ours is told not to speculate here
                told = {member.name: told[member.name] for member in self.members if member.own is None}
            self._standing = standing_of(self._declared, told, time.time())
        return self._standing

    def place(self, member: str) -> Place:
        """What running on a server of it means to governance."""
        standing = self.standing()
        place = self._places.get(member)
        if place is None:
            place = self._places[member] = Place(
                pool=self.name,
                upstream=member,
                regime=self.regime,
                losslessness=standing.losslessness,
                certificate=standing.certificate,
            )
        return place

    def begins_within(self, ttft_ms: float) -> bool:
        """Whether first tokens came in time of late on one of its servers, or nobody knows."""
        now_s = self._clock()
        known = [member.first_s(now_s) for member in self.members if member.upstream.ready()]
        return not known or any(first_s is None or 1e3 * first_s <= ttft_ms for first_s in known)

    def is_full(self) -> bool:
        most = self.settings.batch_ceiling
        return most is not None and all(member.in_flight >= most for member in self.members)

    def candidates(self, model: str, tried: Collection[str] = ()) -> list[Member]:
        now_s = self._clock()
        return [
            member
            for member in self.members
            if member.name not in tried
            and member.upstream.ready()
            and member.serves(model)
            and member.breaker.allows(now_s)
        ]

    def lease(self, candidates: Sequence[Member], prefix: Callable[[], bytes]) -> Lease:
        """The idlest server, the longest unasked among equals; one that knows the prefix if it is hardly busier."""
        chosen = candidates[0] if len(candidates) == 1 else _best(candidates, prefix())
        self._turns += 1
        chosen.turn = self._turns
        return Lease(self, chosen, self._clock)


def _mean(loads: Sequence[Load]) -> Load:
    count = len(loads)
    return Load(
        running=round(sum(load.running for load in loads) / count),
        waiting=round(sum(load.waiting for load in loads) / count),
        context_tokens=round(sum(load.context_tokens for load in loads) / count),
        kv_free_fraction=min(load.kv_free_fraction for load in loads),
    )


def _best(candidates: Sequence[Member], prefix: bytes) -> Member:
    busy = {member.name: member.busy() for member in candidates}
    near = max(candidates, key=lambda member: _affinity(prefix, member.name))
    if prefix and busy[near.name] <= min(busy.values()) + AFFINITY_SLACK:
        return near
    return min(candidates, key=lambda member: (busy[member.name], member.turn))


def _affinity(prefix: bytes, name: str) -> bytes:
    """Rendezvous hashing: when a server leaves, only its own prefixes move."""
    return blake2b(prefix + name.encode(), digest_size=8).digest()
