"""What the gateway asks and is told about where a request should go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from decodeloop.types.names import RequestClass
from decodeloop.types.request import Speculation
from decodeloop.types.step import Load


class Regime(StrEnum):
    """How a pool serves."""

    PLAIN = "plain"
    FIXED = "fixed"  # always speculates, whatever the load
    ADAPTIVE = "adaptive"  # decides every step


class Losslessness(StrEnum):
    """What is known of a pool's output against its target's own."""

    PLAIN = "plain"  # nothing is drafted: it is the target's own
    CERTIFIED = "certified"  # by a certificate that holds
    CLAIMED = "claimed"  # by its operator, or by its servers
    UNKNOWN = "unknown"
    LOSSY = "lossy"

    def meets(self, demand: str) -> bool:
        """demand: one of DEMANDS, or "" for none."""
        return not demand or self.value in DEMANDS[demand]


DEMANDS: Mapping[str, tuple[str, ...]] = {
    "claimed": ("plain", "certified", "claimed"),
    "certified": ("plain", "certified"),
}


class RouteReason(StrEnum):
    """Why a pool was chosen."""

    OVERRIDE = "override"  # the caller named it, and may
    USER = "user"  # the caller wants speculation, or wants none
    GAIN = "gain"  # speculation pays for this class at this load
    NO_GAIN = "no_gain"  # it doesn't
    ENTROPY = "entropy"  # the text at hand is unpredictable for its class
    ONLY = "only"  # there is no other
    SLO = "slo"  # elsewhere first tokens came later than the caller wants them


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A set of upstreams with one serving regime, as it stands now.

    gains: per class, (load, speed against plain) pairs in ascending order of load: this deployment's measured cliff.
    acceptance: per class, the share of verified draft tokens accepted lately, and when the gains were measured.
    """

    name: str
    regime: Regime
    load: Load
    gains: Mapping[RequestClass, Sequence[tuple[int, float]]] = field(default_factory=dict)
    acceptance: Mapping[RequestClass, tuple[float, float]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteRequest:
    """pool: the one that the caller named; may_choose: whether that is granted.

    entropy: nats, of its text so far. temperature: None where it isn't known.
    """

    request_class: RequestClass
    speculation: Speculation = Speculation()
    entropy: float | None = None
    temperature: float | None = None
    pool: str | None = None
    may_choose: bool = False


@dataclass(frozen=True, slots=True)
class Route:
    """scores: every pool's expected speed for the request, against an idle plain one. denied: the named pool was not
    granted."""

    pool: str
    reason: RouteReason
    scores: Mapping[str, float]
    denied: bool = False
