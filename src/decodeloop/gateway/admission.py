"""How many requests may be in flight."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from decodeloop.gateway.errors import shutting_down
from decodeloop.types import RequestRefused

__all__ = ["Admission"]


class Admission:
    """Counts requests from admission to the end of their answers; refuses beyond `most`, and all when draining."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.in_flight = 0
        self.draining = False

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Raises RequestRefused: 429 when full, 503 when draining."""
        if self.draining:
            raise shutting_down()
        if self.in_flight >= self._most:
            raise RequestRefused(
                f"{self._most} requests are being answered already; try again soon", status=429, code="server_busy"
            )
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1
