"""A proof of concept as a file: what is served, what must come of it, how long it may take. Set before it is run."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from decodeloop import config
from decodeloop.evaluation.economics import Money
from decodeloop.evaluation.plan import Arm, Plan
from decodeloop.evaluation.prices import given, read_prices
from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.sampling import sample, weigh
from decodeloop.evaluation.workloads.suite import mini_suite
from decodeloop.evaluation.workloads.workload import Workload, WorkRequest
from decodeloop.types import RequestClass, Slo

EMBEDDED = "embedded"
SPECULATING = ("static", "adaptive")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadAsked:
    """file: a workload (None: the suite that is shipped), in one of the importers' formats. per_class: requests kept of
    each class. shares: real volume of each class, in any unit; {}: the workload's own weights. temperature: of requests
    that name none: servers' defaults differ."""

    file: str | None = None
    form: str = "workload"
    per_class: int = 24
    shares: Mapping[str, float] = field(default_factory=dict)
    max_tokens: int | None = 48
    temperature: float = 0.0

    def __post_init__(self) -> None:
        if self.per_class < 1:
            raise ValueError("per_class is at least 1")
        for name in self.shares:
            request_class(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadAsked:
    """levels: requests at once. judged: the level that the verdict is about. Higher levels show larger batches."""

    levels: tuple[int, ...] = (1, 8)
    judged: int = 1
    requests_per_turn: int = 8

    def __post_init__(self) -> None:
        if not self.levels or min(self.levels) < 1 or list(self.levels) != sorted(set(self.levels)):
            raise ValueError(f"levels are ascending numbers of requests at once, not {list(self.levels)}")
        if self.judged not in self.levels:
            raise ValueError(f"judged {self.judged} is none of the levels {list(self.levels)}")
        if self.requests_per_turn < 1:
            raise ValueError("requests_per_turn is at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """minutes: of measuring, looked at after every block. blocks: at most. least_blocks: fewer decide nothing."""

    minutes: float = 8.0
    blocks: int = 8
    least_blocks: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.least_blocks <= self.blocks:
            raise ValueError("least_blocks is at least 2 and at most blocks: an interval needs two")
        if not self.minutes > 0.0:
            raise ValueError("minutes are more than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceAsked:
    """usd_per_hour: of one device, or the name of one in the price table as `device`."""

    usd_per_hour: float | None = None
    device: str | None = None
    devices: int = 1
    usd_per_kwh: float = 0.0
    pue: float = 1.0

    def money(self, watts: float | None) -> Money:
        if (self.usd_per_hour is None) == (self.device is None):
            raise ValueError("price: give either usd_per_hour or device")
        price = read_prices().price(self.device) if self.device is not None else given(self.usd_per_hour or 0.0)
        return Money(price=price, devices=self.devices, watts=watts, usd_per_kwh=self.usd_per_kwh, pue=self.pue)


@dataclass(frozen=True, slots=True, kw_only=True)
class Criteria:
    """saving: share of device time, weighted by volume, that must surely be saved. class_loss: no class may surely cost
    more than this much more. floor: no cell of load and class may surely decode slower than this share of the baseline.
    unchanged: every answer must be the baseline's, token for token. attained: share of requests that must meet ttft_ms
    and tpot_ms."""

    saving: float = 0.10
    class_loss: float = 0.05
    floor: float = 0.98
    unchanged: bool = True
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    attained: float = 0.95

    def __post_init__(self) -> None:
        for name in ("saving", "class_loss", "floor", "attained"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name} is a share from 0 to 1, not {getattr(self, name)}")

    @property
    def slo(self) -> Slo | None:
        return None if self.ttft_ms is None and self.tpot_ms is None else Slo(self.ttft_ms, self.tpot_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmAsked:
    """target: `embedded`, or an endpoint's URL. model: of the embedded engine (None: the pilot's own); for an endpoint
    its name there. engine: settings of the embedded engine. fields: added to every request's body. lossless: whether
    its output is the baseline's; None: not known. if_present: left out, with a word, where its model isn't here.
    key: of an endpoint; it is in no record."""

    label: str
    role: str = ""
    target: str = EMBEDDED
    model: str | None = None
    engine: Mapping[str, Any] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)
    lossless: bool | None = None
    if_present: bool = False
    key: str | None = field(default=None, repr=False)
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pilot:
    """arms: the first is the baseline. candidate: the label that the verdict is about."""

    name: str
    candidate: str
    arms: tuple[ArmAsked, ...]
    price: PriceAsked
    model: str = "smollm2"
    workload: WorkloadAsked = WorkloadAsked()
    load: LoadAsked = LoadAsked()
    budget: Budget = Budget()
    criteria: Criteria = Criteria()
    seed: int = 0

    def __post_init__(self) -> None:
        labels = [arm.label for arm in self.arms]
        if len(labels) < 2 or len(set(labels)) < len(labels):
            raise ValueError("a pilot has at least two arms, of different labels")
        if self.candidate not in labels[1:]:
            raise ValueError(
                f"candidate {self.candidate!r} is no arm beside the baseline {labels[0]!r}; choose from "
                f"{', '.join(labels[1:])}"
            )
        if self.arm(labels[0]).if_present or self.arm(self.candidate).if_present:
            raise ValueError("baseline and candidate can't be left out: if_present is for the others")
        self.price.money(None)

    def arm(self, label: str) -> ArmAsked:
        return next(arm for arm in self.arms if arm.label == label)

    def without(self, labels: Sequence[str]) -> Pilot:
        return replace(self, arms=tuple(arm for arm in self.arms if arm.label not in labels))


def read_pilot(text: str, *, env: Mapping[str, str], source: str) -> Pilot:
    """Raises ValueError with the place of what is wrong."""
    return config.load(text, Pilot, env=env, source=source)


def suite_of(asked: WorkloadAsked, *, seed: int, read: Workload | None = None) -> Workload:
    """What is served: `read` (the file's), sampled; else the shipped suite. Weighted by the shares, if any."""
    shares = {request_class(name): share for name, share in asked.shares.items() if share > 0.0}
    if read is None:
        whole = mini_suite(asked.per_class, seed=seed, classes=tuple(shares))
    else:
        whole = sample(only(read, tuple(shares)), asked.per_class, seed=seed)
    return settled(weigh(whole, shares) if shares else whole, seed, asked.temperature)


def settled(workload: Workload, seed: int, temperature: float) -> Workload:
    """Requests that name no seed or temperature get one, so that every arm draws the same answer where its law is the
    same."""

    def own(request: WorkRequest) -> WorkRequest:
        drawn = int.from_bytes(hashlib.sha256(f"{seed} {request.id}".encode()).digest()[:4]) >> 1
        return replace(request, params={"seed": drawn, "temperature": temperature, **request.params})

    return replace(workload, requests=tuple(own(request) for request in workload.requests))


def only(workload: Workload, classes: tuple[RequestClass, ...]) -> Workload:
    """classes: () for all. Raises ValueError when nothing is left."""
    kept = tuple(r for r in workload.requests if not classes or r.request_class in classes)
    if not kept:
        raise ValueError(f"workload {workload.name} has no requests of {', '.join(classes) or 'any class'}")
    return replace(workload, requests=kept)


def arm_of(asked: ArmAsked) -> Arm:
    """As a plan has it, before anything is known but what the file says."""
    return Arm(
        label=asked.label,
        target=asked.target,
        model=asked.model or "",
        role=asked.role,
        lossless=asked.lossless,
        fields=asked.fields,
        settings=asked.engine,
        note=asked.note,
    )


def plan_of(
    pilot: Pilot,
    workload: Workload,
    arms: Sequence[Arm],
    facts: Mapping[str, Any],
    *,
    at: str,
    version: str,
    command: str,
) -> Plan:
    """arms: as they are open. facts: of the system. at: ISO 8601, UTC."""
    return Plan(
        id=pilot.name,
        created_at=at,
        version=version,
        workload=workload.facts(),
        arms=tuple(arms),
        levels=tuple(float(level) for level in pilot.load.levels),
        blocks=pilot.budget.blocks,
        requests_per_turn=pilot.load.requests_per_turn,
        seed=pilot.seed,
        max_tokens=pilot.workload.max_tokens,
        system=dict(facts),
        command=command,
    )
