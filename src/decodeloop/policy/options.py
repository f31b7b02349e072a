"""What an operator may set of the adaptive policies, checked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from decodeloop import config


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveOptions:
    """interference: share of its plain speed that a request may lose to the others' speculation; None lifts the bound.
    frontier: 0 all throughput, 1 all objectives (interactive). attainment: the share of a class's answers that is to
    meet its objectives, if the frontier allows; no throughput is given for more. tpot_ms: of requests that bring none.
    free_drafters: those that run at every step anyway; more are recognised by their shadow scores.
    """

    interference: float | None = 0.05
    frontier: float = 0.5
    attainment: float = 0.95
    tpot_ms: float | None = None
    free_drafters: tuple[str, ...] = ("ngram", "suffix")

    def __post_init__(self) -> None:
        if self.interference is not None and not 0.0 <= self.interference < 1.0:
            raise ValueError(f"interference {self.interference} is not a share: 0 <= interference < 1, or null")
        if not 0.0 <= self.frontier <= 1.0:
            raise ValueError(f"frontier {self.frontier} is not within 0 (throughput) .. 1 (objectives)")
        if not 0.0 < self.attainment < 1.0:
            raise ValueError(f"attainment {self.attainment} is not a share of answers: 0 < attainment < 1")
        if self.tpot_ms is not None and not self.tpot_ms > 0.0:
            raise ValueError(f"tpot_ms {self.tpot_ms} is not a time")


def read_options(given: Mapping[str, Any]) -> AdaptiveOptions:
    """Raises ValueError, naming the choices, for an option that does not exist or can't hold."""
    return config.read_options(AdaptiveOptions, given, of="policy options")
