"""What a policy is after: the worth of a token and of a millisecond, for the step at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from decodeloop.policy.allocate import Objective
from decodeloop.types import DecodeRequest, FloatArray, Reason, StepRecord


@dataclass(frozen=True, slots=True)
class Market:
    """rate: what decoding alone could earn a ms now, for given weights. plain: tokens a ms of a step that verifies
    nothing, hence no more than that. mixed: prompt tokens share the step."""

    rate: Callable[[FloatArray | None], float]
    plain: float
    mixed: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """weights: [N] what a token of each request is worth (None: 1). objective: what a millisecond costs."""

    weights: FloatArray | None
    objective: Objective


class Aim(Protocol):
    reason: Reason

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        """The requests of the step that begins."""
        ...

    def edges(self, requests: Sequence[DecodeRequest], plain_ms: float) -> Sequence[float] | None:
        """[N] how much more a token of each may be worth than if nobody had an objective, measured against the price of
        time, which objectives raise. plain_ms: of a step that decodes and does nothing else. None: 1 each."""
        ...

    def terms(self, requests: Sequence[DecodeRequest], market: Market) -> Terms: ...

    def follow(self, record: StepRecord) -> None:
        """What the next step must know already."""
        ...

    def observe(self, record: StepRecord) -> None:
        """What can wait for a few steps."""
        ...

    def describe(self) -> Mapping[str, Any]: ...
