"""What a policy is after: the worth of a token and of a millisecond, for the step at hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from decodeloop.policy.allocate import Objective
from decodeloop.policy.tracks import Track
from decodeloop.types import DecodeRequest, FloatArray, Reason, StepRecord


@dataclass(frozen=True, slots=True)
class Market:
    """rate: what decoding alone could earn a ms now, for given weights. mixed: prompt tokens share the step."""

    rate: Callable[[FloatArray | None], float]
    mixed: bool


@dataclass(frozen=True, slots=True)
class Terms:
    """weights: [N] what a token of each request is worth (None: 1). objective: what a millisecond costs."""

    weights: FloatArray | None
    objective: Objective


class Aim(Protocol):
    """learn_every: steps that may pass before what they showed must count."""

    reason: Reason
    learn_every: int

    def meet(self, requests: Sequence[DecodeRequest]) -> None:
        """The requests of the step that begins."""
        ...

    def heaviest(self, tracks: Sequence[Track]) -> float:
        """How much more a token of any of them may be worth than of someone without an objective."""
        ...

    def terms(self, requests: Sequence[DecodeRequest], tracks: Sequence[Track], market: Market) -> Terms: ...

    def observe(self, record: StepRecord, tracks: Sequence[Track]) -> None:
        """tracks: of the record's rows."""
        ...

    def describe(self) -> Mapping[str, Any]: ...
