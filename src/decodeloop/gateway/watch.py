"""Who is told of every request for an answer that has ended, whether it came over HTTP or out of a batch."""

from __future__ import annotations

import logging
import time

from decodeloop.gateway.class_meter import ClassMeters
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.telemetry import Observer, Trail

__all__ = ["Watch"]

log = logging.getLogger(__name__)


class Watch:
    """observer None: nobody but the metrics."""

    def __init__(self, observer: Observer | None) -> None:
        self._observer = observer
        self.classes = ClassMeters()

    def ended(self, exchange: Exchange, status: int) -> None:
        trail = exchange.trail
        if trail is None:
            return
        self.classes.add(trail)
        if self._observer is not None:
            self._tell(self._observer, trail, exchange, status)

    def _tell(self, observer: Observer, trail: Trail, exchange: Exchange, status: int) -> None:
        now_s = time.time()
        began_s = now_s - (time.monotonic() - exchange.arrived_s)
        try:
            observer.finished(trail.finished(exchange.request_id, status, exchange.traceparent(), began_s, now_s))
        except Exception:
            log.exception("request %s could not be told of", exchange.request_id)
