"""A stopwatch that loses nothing: every moment of a step belongs to one of its parts."""

from __future__ import annotations

from collections.abc import Callable


class Laps:
    """clock: seconds. `lap(part)` adds the time since the last lap to that part."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._last = self.started_s = clock()
        self._ms: dict[str, float] = {}

    def lap(self, part: str) -> None:
        now = self._clock()
        self._ms[part] = self._ms.get(part, 0.0) + 1e3 * (now - self._last)
        self._last = now

    def ms(self, part: str) -> float:
        return self._ms.get(part, 0.0)

    @property
    def total_ms(self) -> float:
        return 1e3 * (self._last - self.started_s)
