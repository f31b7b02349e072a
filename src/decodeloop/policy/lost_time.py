"""What finding out may cost: of any stretch of time a hundredth, and one probe."""

from __future__ import annotations

LOST_SHARE = 0.01  # of all time


class LostTime:
    """Nothing is saved up, since what was saved would be lost in one go: a probe may be made where nothing is owed, and
    what it took is owed until a hundredth of the time since has paid for it."""

    def __init__(self) -> None:
        self._total_ms = self._lost_ms = self.owed_ms = 0.0

    @property
    def affords_more(self) -> bool:
        return self.owed_ms <= 0.0

    @property
    def share(self) -> float:
        """Of all time."""
        return self._lost_ms / self._total_ms if self._total_ms else 0.0

    def pass_by(self, ms: float) -> None:
        self._total_ms += ms
        self.owed_ms = max(self.owed_ms - LOST_SHARE * ms, 0.0)

    def spend(self, ms: float) -> None:
        """Below 0: less was lost than had been expected."""
        self._lost_ms += ms
        self.owed_ms = max(self.owed_ms + ms, 0.0)
