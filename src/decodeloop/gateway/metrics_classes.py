"""Metrics by class and pool: what speculation brought, what a token took, what a million of them cost."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from decodeloop.gateway.class_meter import QUANTILES, ClassMeters, quantile
from decodeloop.gateway.governance import Governance
from decodeloop.governance.price import NANOS

__all__ = ["of_classes", "of_governance"]

LABELS = ("pool", "class")
MILLION = 1e6
TOTALS = (
    ("class_requests", "Answered", "requests"),
    ("class_completion_tokens", "Delivered", "completion"),
    ("class_drafted_tokens", "Proposed by drafters", "drafted"),
    ("class_verified_tokens", "Draft tokens that the target looked at", "verified"),
    ("class_accepted_tokens", "Draft tokens kept by the verdict", "accepted"),
)


def of_classes(meters: ClassMeters) -> Iterator[Metric]:
    for name, text, field in TOTALS:
        total = CounterMetricFamily(f"decodeloop_{name}", text, labels=LABELS)
        for key, meter in meters.by.items():
            total.add_metric(key, getattr(meter, field))
        yield total
    rate = GaugeMetricFamily("decodeloop_acceptance_rate", "Of verified draft tokens, since the start", labels=LABELS)
    length = GaugeMetricFamily(
        "decodeloop_mean_acceptance_length", "Tokens a verified draft brought, since the start", labels=LABELS
    )
    times = GaugeMetricFamily(
        "decodeloop_tpot_seconds",
        "Per output token after the first, over the last 1,000 answers of a single choice",
        labels=(*LABELS, "quantile"),
    )
    for key, meter in meters.by.items():
        if meter.acceptance is not None:
            rate.add_metric(key, meter.acceptance)
        if meter.mean_length is not None:
            length.add_metric(key, meter.mean_length)
        if meter.tpot_s:
            ordered = sorted(meter.tpot_s)
            for share in QUANTILES:
                times.add_metric((*key, str(share)), quantile(ordered, share))
    yield from (rate, length, times)


def of_governance(governance: Governance) -> Iterator[Metric]:
    """Money is this gateway's, since its start: the ledger has all of it."""
    clerk, currency = governance.clerk, governance.settings.currency
    yield CounterMetricFamily(
        "decodeloop_unrecorded_requests", "Served while the books could not be written", value=clerk.unrecorded
    )
    for name, file in (("audit_entries", governance.audit), ("captures", governance.captures)):
        if file is not None:
            yield CounterMetricFamily(f"decodeloop_{name}_lost", "That could not be kept", value=file.lost)
    labels = (*LABELS, "currency")
    families: list[CounterMetricFamily | GaugeMetricFamily] = [
        CounterMetricFamily("decodeloop_billed", "Money asked for tokens", labels=labels),
        CounterMetricFamily("decodeloop_attributed_cost", "The requests' share of the machines' cost", labels=labels),
        GaugeMetricFamily("decodeloop_billed_per_million_tokens", "Of completion tokens", labels=labels),
        GaugeMetricFamily("decodeloop_cost_per_million_tokens", "Of completion tokens", labels=labels),
    ]
    for (pool, request_class), sums in clerk.sums.items():
        key = (pool, request_class, currency)
        billed, cost = sums.billed / NANOS, sums.cost / NANOS
        values: list[float | None] = [billed, cost, None, None]
        if sums.completion:
            values[2:] = [MILLION * billed / sums.completion, MILLION * cost / sums.completion]
        for family, value in zip(families, values, strict=True):
            if value is not None:
                family.add_metric(key, value)
    yield from families
