"""Metrics of what speculation costs and how long it will pay: shares of the steps' time, and the way to the cliff."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.meter import Meter

__all__ = ["cliffs", "verification_shares"]

LABELS = ("engine", "class", "drafter")


def verification_shares(meter: Meter) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "decodeloop_verification_share",
        "Of the steps' time since the start: drafting, verifying and what is left",
        labels=("engine", "model_name", "phase"),
    )
    for (engine, model), totals in meter.models.items():
        whole = sum(ms for phase, ms in totals.phases.items() if phase != "queue")
        if whole > 0:
            for phase in ("draft", "verify"):
                family.add_metric((engine, model, phase), totals.phases[phase] / whole)
    yield family


def cliffs(fleet: Fleet) -> Iterator[Metric]:
    """As the policies believe now: the last load at which speculating still gains, +Inf where no end is in sight."""
    loads = GaugeMetricFamily("decodeloop_cliff_load", "The last load at which speculation gains", labels=LABELS)
    ways = GaugeMetricFamily("decodeloop_cliff_distance", "That load, less the requests that run now", labels=LABELS)
    for name, upstream in fleet.upstreams.items():
        running = upstream.load().running
        for (request_class, drafter), load in _ends(upstream.describe()).items():
            loads.add_metric((name, request_class, drafter), load)
            ways.add_metric((name, request_class, drafter), load - running)
    yield loads
    yield ways


def _ends(view: Mapping[str, Any]) -> dict[tuple[str, str], float]:
    """By class and drafter: the nearest of all tenants'."""
    found: dict[tuple[str, str], float] = {}
    for row in view.get("cliff") or ():
        last, first_lost = row["adaptive"]["ends_between"]
        load = math.inf if first_lost is None else float(last or 0)
        key = str(row["class"]), str(row["drafter"])
        found[key] = min(load, found.get(key, math.inf))
    return found
