"""What answers of each class came to, by pool: acceptance, tokens a draft, and the time of a token."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from decodeloop.gateway.telemetry import Trail

__all__ = ["QUANTILES", "ClassMeter", "ClassMeters", "quantile"]

LATELY = 1000  # answers of which times are remembered
QUANTILES = (0.5, 0.9, 0.99)


@dataclass(slots=True)
class ClassMeter:
    """tpot_s: of the last answers, seconds per output token after the first. stepped_*: of the answers whose engine
    tells how many drafts there were."""

    requests: int = 0
    completion: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    stepped_drafts: int = 0
    stepped_accepted: int = 0
    tpot_s: deque[float] = field(default_factory=lambda: deque(maxlen=LATELY))

    @property
    def acceptance(self) -> float | None:
        """Of the draft tokens that were verified."""
        return self.accepted / self.verified if self.verified else None

    @property
    def mean_length(self) -> float | None:
        """Tokens a verified draft brought, the target's own included."""
        return 1.0 + self.stepped_accepted / self.stepped_drafts if self.stepped_drafts else None


class ClassMeters:
    def __init__(self) -> None:
        self.by: dict[tuple[str, str], ClassMeter] = {}  # (pool, class)

    def add(self, trail: Trail) -> None:
        """Of a request that has ended; nothing where it never ran."""
        times = trail.times
        if times is None or times.usage is None:
            return
        key = trail.pool, str(trail.request_class)
        found = self.by.get(key)
        if found is None:
            found = self.by[key] = ClassMeter()
        usage, report, tpot_s = times.usage, times.report, times.tpot_s
        found.requests += 1
        found.completion += usage.completion
        found.drafted += usage.drafted
        found.verified += usage.verified
        found.accepted += usage.accepted
        if report is not None and report.accepted_per_step:
            found.stepped_drafts += len(report.accepted_per_step)
            found.stepped_accepted += sum(report.accepted_per_step)
        if tpot_s is not None:
            found.tpot_s.append(tpot_s)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest, of values in ascending order; there is one at least."""
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
