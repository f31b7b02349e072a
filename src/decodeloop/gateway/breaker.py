"""A circuit breaker: a server that fails is left alone for a while, then tried with one request.

429 and 503 are no faults: such a server is well and full. It gets fewer requests until it says otherwise, not none
for being broken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

__all__ = ["Breaker", "BreakerSettings"]


@dataclass(frozen=True, slots=True)
class BreakerSettings:
    faults_in_a_row: int = 5
    fault_share: float = 0.5  # of the last `window` answers
    window: int = 20
    open_s: float = 2.0  # doubles with every failed trial
    most_open_s: float = 60.0

    def __post_init__(self) -> None:
        if self.faults_in_a_row < 1 or self.window < 1:
            raise ValueError("faults_in_a_row and window must be at least 1")
        if not 0 < self.fault_share <= 1:
            raise ValueError("fault_share must be above 0 and at most 1")
        if not 0 < self.open_s <= self.most_open_s:
            raise ValueError("open_s must be above 0 and at most most_open_s")


class Breaker:
    """Of one server. Times are the caller's, in seconds of a clock that never goes back."""

    def __init__(self, settings: BreakerSettings) -> None:
        self._settings = settings
        self._recent: deque[bool] = deque(maxlen=settings.window)  # whether each was a fault
        self._row = 0
        self._opens_s = settings.open_s
        self._retry_s: float | None = None  # None: closed
        self._trying = False
        self._full_until_s = 0.0

    @property
    def state(self) -> str:
        return "closed" if self._retry_s is None else "half_open" if self._trying else "open"

    def allows(self, now_s: float) -> bool:
        """Whether a request may be sent."""
        if now_s < self._full_until_s:
            return False
        return self._retry_s is None or (now_s >= self._retry_s and not self._trying)

    def begin(self) -> None:
        """A request is sent, as `allows` said; exactly one of the methods below must follow."""
        self._trying = self._retry_s is not None

    def succeeded(self) -> None:
        self._end(fault=False)
        if self._retry_s is not None:
            self._retry_s, self._opens_s = None, self._settings.open_s
            self._recent.clear()

    def full(self, now_s: float, retry_after_s: float | None) -> None:
        """The server pushes back: it answers, so it isn't broken."""
        self.succeeded()
        self._full_until_s = now_s + min(1.0 if retry_after_s is None else retry_after_s, self._settings.most_open_s)

    def failed(self, now_s: float) -> None:
        was_open = self._retry_s is not None
        self._end(fault=True)
        if was_open:
            self._opens_s = min(2 * self._opens_s, self._settings.most_open_s)
        if was_open or self._row >= self._settings.faults_in_a_row or self._mostly_faults():
            self._retry_s = now_s + self._opens_s

    def released(self) -> None:
        """The request ended before anything was learnt of the server: its caller left, say."""
        self._trying = False

    def _mostly_faults(self) -> bool:
        share = sum(self._recent) / self._settings.window
        return len(self._recent) == self._settings.window and share >= self._settings.fault_share

    def _end(self, *, fault: bool) -> None:
        self._trying = False
        self._recent.append(fault)
        self._row = self._row + 1 if fault else 0
