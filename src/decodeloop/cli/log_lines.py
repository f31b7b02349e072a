"""What log lines look like."""

from __future__ import annotations

import logging
import time

LINE = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class LineFormatter(logging.Formatter):
    """logging's own text; that of a second is worked out once, for a gateway writes a line for every request."""

    def __init__(self) -> None:
        super().__init__(LINE)
        self._second, self._told = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._told = second, time.strftime(self.default_time_format, self.converter(second))
        return f"{self._told},{int(record.msecs):03d}"
