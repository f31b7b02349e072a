"""The economics of a result card: what was paid for what, in numbers."""

from __future__ import annotations

import math
from typing import Any

from decodeloop.evaluation.economics import Delta, Money
from decodeloop.evaluation.economics_run import Bill, Capacity, Cost


def economics_part(found: Bill, money: Money) -> dict[str, Any]:
    """Shares are of device time, negative is saved; what has no bound is null."""
    return {
        "usd_per_hour": money.usd_per_hour,
        "devices": money.devices,
        "price": money.price.said,
        "watts": money.watts,
        "level": found.level,
        "device_time_from": found.source.value,
        "volume_weighted_delta": _delta(found.delta),
        "capacity": {found.baseline: _capacity(found.off), found.arm: _capacity(found.on)},
        "classes": {
            str(each.request_class): {
                "volume_share": each.volume_share,
                "before": _cost(each.off),
                "after": _cost(each.on),
                "delta": _delta(each.delta),
                "tail": each.tail,
            }
            for each in found.classes
        },
        "unmeasured": [str(c) for c in found.unmeasured],
    }


def _delta(found: Delta) -> dict[str, Any]:
    known = found.blocks >= 2
    return {
        "share": found.share,
        "low": found.low if known else None,
        "high": found.high if known else None,
        "blocks": found.blocks,
    }


def _cost(found: Cost) -> dict[str, Any]:
    return {
        "usd_per_request": found.usd_per_request,
        "usd_per_million_output_tokens": _bounded(found.usd_per_million_output),
        "usd_per_million_total_tokens": _bounded(found.usd_per_million_total),
        "device_ms": found.ms,
        "requests": found.requests,
    }


def _capacity(found: Capacity) -> dict[str, Any]:
    return {
        "goodput_per_s": found.goodput_per_s,
        "usd_per_request": _bounded(found.usd_per_request),
        "usd_per_million_output_tokens": _bounded(found.usd_per_million_output),
        "usd_per_million_total_tokens": _bounded(found.usd_per_million_total),
    }


def _bounded(value: float) -> float | None:
    return value if math.isfinite(value) else None
