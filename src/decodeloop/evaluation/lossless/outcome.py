"""What certification finds: checks, each with the power it had and the violation it had to catch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any


class Level(StrEnum):
    """How much of the target was seen."""

    WHITE = "white"  # its code and its logits
    GREY = "grey"  # its tokens, and its own plain mode
    BLACK = "black"  # its text, against a reference


class Verdict(StrEnum):
    YES = "yes"
    NO = "no"
    INVALID = "invalid"  # nothing can be said: no control caught, nothing speculated, or a failure not seen again


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """A deviation of `size` (of what `deviation` names) fails the check with at least this probability."""

    deviation: str
    size: float
    probability: float
    samples: int
    false_failure_rate: float  # at most, for a target that is lossless

    def __str__(self) -> str:
        return f"{self.deviation} of {self.size:.3g} with probability {self.probability:.3g}"


@dataclass(frozen=True, slots=True)
class Control:
    """A violation that was put in on purpose. It must be caught, or the check proves nothing."""

    name: str
    caught: bool
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    name: str
    claim: str
    passed: bool
    found: str
    measured: Mapping[str, float]
    power: tuple[Power, ...]
    controls: tuple[Control, ...]
    idle: bool = False  # speculation should have run and didn't
    unsettled: bool = False  # it failed at first, and not on answers drawn anew

    @property
    def controlled(self) -> bool:
        return bool(self.controls) and all(control.caught for control in self.controls)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Check:
        power = tuple(Power(**each) for each in data["power"])
        return cls(**{**data, "power": power, "controls": tuple(Control(**each) for each in data["controls"])})


def verdict_of(checks: Sequence[Check]) -> Verdict:
    """A failed control outweighs everything: what can't catch a violation can't acquit or convict."""
    if not checks or not all(check.controlled for check in checks):
        return Verdict.INVALID
    if not all(check.passed for check in checks):
        return Verdict.NO
    return Verdict.INVALID if any(check.idle or check.unsettled for check in checks) else Verdict.YES
