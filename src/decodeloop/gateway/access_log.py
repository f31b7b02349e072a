"""A line in the log for every request: those of one moment are written together, beside the answers' own path."""

from __future__ import annotations

import asyncio
import logging
import time
from logging import DEBUG, INFO, LogRecord

__all__ = ["AccessLog"]

WAIT_S = 0.1  # that a line waits for others at most

log = logging.getLogger(__name__)


class AccessLog:
    """Requests that are posted are worth a line; pages are polled, and told to whoever debugs."""

    def __init__(self) -> None:
        self._waiting: list[LogRecord] = []
        self._timer: asyncio.TimerHandle | None = None

    def tell(self, request_id: str, method: str, path: str, status: int, took_s: float) -> None:
        level = INFO if method == "POST" else DEBUG
        if not log.isEnabledFor(level):
            return
        self._waiting.append(_line(level, (request_id, method, path, status, 1e3 * took_s)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(WAIT_S, self.write)

    def write(self) -> None:
        """What waits, with the times at which it was told."""
        if self._timer is not None:
            self._timer.cancel()
        waiting, self._waiting, self._timer = self._waiting, [], None
        for line in waiting:
            log.handle(line)


_TEMPLATE = LogRecord(log.name, INFO, __file__, 0, "%s %s %s %d %.1f ms", None, None).__dict__
_LEVELS = {level: logging.getLevelName(level) for level in (DEBUG, INFO)}


def _line(level: int, told: tuple[object, ...]) -> LogRecord:
    """As LogRecord makes one, which looks for the file, thread and process each time."""
    line = LogRecord.__new__(LogRecord)
    now_s = time.time()
    line.__dict__.update(
        _TEMPLATE, levelno=level, levelname=_LEVELS[level], args=told, created=now_s, msecs=1e3 * (now_s % 1.0)
    )
    return line
