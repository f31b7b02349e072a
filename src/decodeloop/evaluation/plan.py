"""What is set out before anything is measured: arms, workload, load, blocks. The words are those of `results`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from decodeloop.evaluation.arms import order


class Mode(StrEnum):
    """What a result may claim: only REAL may claim savings."""

    REAL = "R"  # own traffic, real acceptance, paired
    SYNTHETIC = "S"  # pinned acceptance: not lossless
    SIMULATED = "M"  # with its calibration error


class LoadKind(StrEnum):
    CLOSED = "closed"  # a level is a number of requests at once
    OPEN = "open"  # a level is requests a second


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """A serving configuration.

    target: an endpoint's base URL, or `embedded`. fields: what is added to every request's body. lossless: whether its
    output is the target's; None: not known. role: `off`, `static`, `adaptive`, or anything else that is compared
    (`int4`, `smaller model`). settings: how the server was started, as far as known. reset: how its prefix cache is
    emptied between turns; `none` says that it isn't.
    """

    label: str
    target: str
    model: str = ""
    role: str = ""
    lossless: bool | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    engine: str = ""
    reset: str = "none"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What was served. shares: request class -> its share of real volume; counts: its number of requests."""

    name: str
    sha256: str
    requests: int
    counts: Mapping[str, int]
    shares: Mapping[str, float]
    sources: tuple[str, ...] = ()
    licence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was set out before anything was measured: the first line of a results file.

    arms: the first one is the baseline. system: hardware and versions, as found. seed: of order, sampling and arrivals.
    """

    id: str
    created_at: str  # ISO 8601, UTC
    version: str
    mode: Mode = Mode.REAL
    workload: WorkloadFacts
    arms: tuple[Arm, ...]
    load: LoadKind = LoadKind.CLOSED
    arrivals: str = "closed"  # closed, poisson, trace
    speed: float = 1.0  # of a trace
    levels: tuple[float, ...]
    blocks: int
    requests_per_turn: int
    seed: int = 0
    max_tokens: int | None = None
    system: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""

    def arm(self, label: str) -> Arm:
        """Raises KeyError with the choices."""
        for arm in self.arms:
            if arm.label == label:
                return arm
        raise KeyError(f"no arm {label!r}; there are {', '.join(arm.label for arm in self.arms)}")

    def turns(self) -> Iterator[tuple[float, int, int, str]]:
        """(level, block, turn, arm) in the order of measuring: all levels of a block, then the next block."""
        labels = [arm.label for arm in self.arms]
        for block in range(self.blocks):
            for level in self.levels:
                for place, label in enumerate(order(labels, block)):
                    yield level, block, int(place >= len(labels)), label


TurnKey = tuple[float, int, int, str]
