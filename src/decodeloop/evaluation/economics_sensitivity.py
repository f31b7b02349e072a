"""What the saving hangs on: price, power, the mix of classes, the speed-up of each class."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from decodeloop.evaluation.economics import Money, Swing, mix_swings, volume_weighted_delta
from decodeloop.evaluation.economics_run import Bill
from decodeloop.types import RequestClass

HALF_AND_TWICE = (0.5, 2.0)


def saving_swings(bill: Bill) -> list[Swing[str]]:
    """The volume-weighted delta when each class's volume halves or doubles, and when each class's saving is at the ends
    of its own interval. The widest first.

    Price and power are not here: they scale both sides alike and move the dollars, never the share (`dollar_swings`).
    """
    volume, off, on = bill.volume, *_ms(bill)
    mix = [Swing(f"volume of {s.name}", s.low, s.high, s.at_low, s.at_high) for s in mix_swings(volume, off, on)]
    ends = []
    for each in bill.classes:
        if each.delta.blocks < 2:
            continue
        c = each.request_class
        low, high = (
            volume_weighted_delta(volume, off, {**on, c: off[c] * (1.0 + share)})
            for share in (each.delta.low, each.delta.high)
        )
        ends.append(Swing(f"speed-up of {c}", "best of its interval", "worst of its interval", low, high))
    return sorted([*mix, *ends], key=lambda swing: -swing.span)


def dollar_swings(bill: Bill, money: Money) -> list[Swing[str]]:
    """USD saved per million requests of the measured mix, when price and power move. Negative: spent."""
    price = money.price
    swings = [
        Swing(
            "device price",
            f"{price.span.low:.2f} USD/h",
            f"{price.span.high:.2f} USD/h",
            *(
                usd_saved_per_million(bill, replace(money, price=replace(price, usd_per_hour=usd)))
                for usd in (price.span.low, price.span.high)
            ),
        )
    ]
    if money.watts is not None and money.usd_per_kwh > 0.0:
        low, high = HALF_AND_TWICE
        swings.append(
            Swing(
                "price of power",
                f"{money.usd_per_kwh * low:.3f} USD/kWh",
                f"{money.usd_per_kwh * high:.3f} USD/kWh",
                *(
                    usd_saved_per_million(bill, replace(money, usd_per_kwh=money.usd_per_kwh * factor))
                    for factor in HALF_AND_TWICE
                ),
            )
        )
    return swings


def usd_saved_per_million(bill: Bill, money: Money) -> float:
    """Per million requests in the mix measured, marginal."""
    volume, off, on = bill.volume, *_ms(bill)
    ms = sum(share * (off[c] - on[c]) for c, share in volume.items())
    return 1e6 * ms / 1e3 * money.usd_per_hour / 3600.0


def _ms(bill: Bill) -> tuple[Mapping[RequestClass, float], Mapping[RequestClass, float]]:
    """Device time of a mean request, per class: without and with, the second by the paired delta."""
    off = {each.request_class: each.off.ms for each in bill.classes}
    return off, {each.request_class: each.off.ms * (1.0 + each.delta.share) for each in bill.classes}
