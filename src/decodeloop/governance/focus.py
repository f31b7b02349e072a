"""The ledger in FOCUS 1.4, the common format of cost and usage data: one row a kind of token."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from decodeloop.governance.ledger import LedgerRow, Outcome
from decodeloop.governance.price import NANOS

__all__ = ["COLUMNS", "csv_text", "focus_rows"]

COLUMNS = (
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeClass",
    "ChargeDescription",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedCost",
    "ContractedUnitPrice",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ListUnitPrice",
    "PricingCategory",
    "PricingQuantity",
    "PricingUnit",
    "ResourceId",
    "ResourceType",
    "ServiceCategory",
    "ServiceName",
    "ServiceProviderName",
    "SkuId",
    "SkuMeter",
    "SkuPriceId",
    "SubAccountId",
    "Tags",
    "x_RequestId",
    "x_Principal",
    "x_Agent",
    "x_Capability",
    "x_RequestClass",
    "x_Pool",
    "x_Regime",
    "x_Losslessness",
    "x_AskedModel",
    "x_Outcome",
    "x_DraftedTokens",
    "x_AcceptedTokens",
    "x_AttributedCost",
)

PROVIDER = "decodeloop"


def focus_rows(rows: Iterable[LedgerRow], currency: str) -> Iterator[dict[str, Any]]:
    """Costs are numbers of `currency`; missing values None. A request's cost is attributed to its output row, or to its
    last row where it has none; the sum of BilledCost over all rows is what was billed, to a billionth."""
    for row in rows:
        meters = [meter for meter in _meters(row) if meter[1]]
        billed = [_money(row, name, tokens) for name, tokens, _ in meters]
        if meters:
            billed[-1] += row.billed - sum(billed)  # a correction's kinds are rounded together
        for place, ((name, tokens, price), nanos) in enumerate(zip(meters, billed, strict=True)):
            last = place == len(meters) - 1
            part = _focus_row(row, name, tokens, price=price, billed=nanos / NANOS, currency=currency)
            yield {**part, "x_AttributedCost": row.cost / NANOS if last else 0.0}


def csv_text(rows: Iterable[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _safe(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


def _meters(row: LedgerRow) -> list[tuple[str, int, float]]:
    usage, price = row.usage, row.price
    return [
        ("Input Tokens", usage.prompt - usage.cached, price.prompt),
        ("Cached Input Tokens", usage.cached, price.cached),
        ("Output Tokens", usage.completion, price.completion),
    ]


def _money(row: LedgerRow, meter: str, tokens: int) -> int:
    if meter == "Input Tokens":
        return row.price.prompt_nanos(tokens)
    return row.price.cached_nanos(tokens) if meter.startswith("Cached") else row.price.completion_nanos(tokens)


def _focus_row(
    row: LedgerRow, meter: str, tokens: int, *, price: float, billed: float, currency: str
) -> dict[str, Any]:
    who = row.identity
    sku = f"{row.model}/{meter}"
    tags = {"class": row.request_class, "task": row.task, "trace": row.trace}
    month, after = _month(row.ended_s)
    return {
        "BilledCost": billed,
        "BillingAccountId": PROVIDER,
        "BillingCurrency": currency,
        "BillingPeriodEnd": after,
        "BillingPeriodStart": month,
        "ChargeCategory": "Usage",
        "ChargeClass": "Correction" if row.outcome is Outcome.CORRECTION else None,
        "ChargeDescription": f"{meter} of {row.model}",
        "ChargeFrequency": "Usage-Based",
        "ChargePeriodEnd": _time(row.ended_s + 1),
        "ChargePeriodStart": _time(row.started_s),
        "ConsumedQuantity": tokens,
        "ConsumedUnit": "Tokens",
        "ContractedCost": billed,
        "ContractedUnitPrice": price,
        "EffectiveCost": billed,
        "InvoiceIssuerName": PROVIDER,
        "ListCost": billed,
        "ListUnitPrice": price,
        "PricingCategory": "Standard",
        "PricingQuantity": tokens / 1e6,
        "PricingUnit": "1000000 Tokens",
        "ResourceId": row.upstream,
        "ResourceType": "Model",
        "ServiceCategory": "AI and Machine Learning",
        "ServiceName": row.model,
        "ServiceProviderName": PROVIDER,
        "SkuId": row.model,
        "SkuMeter": meter,
        "SkuPriceId": sku,
        "SubAccountId": who.organization,
        "Tags": json.dumps({name: value for name, value in tags.items() if value}, sort_keys=True),
        "x_RequestId": row.request_id,
        "x_Principal": who.user or None,
        "x_Agent": who.agent or None,
        "x_Capability": who.capability or None,
        "x_RequestClass": row.request_class,
        "x_Pool": row.pool,
        "x_Regime": row.regime or None,
        "x_Losslessness": row.losslessness or None,
        "x_AskedModel": row.asked_model or None,
        "x_Outcome": row.outcome.value,
        "x_DraftedTokens": row.usage.drafted if meter == "Output Tokens" else 0,
        "x_AcceptedTokens": row.usage.accepted if meter == "Output Tokens" else 0,
    }


def _time(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _month(at_s: float) -> tuple[str, str]:
    begin = datetime.fromtimestamp(at_s, UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    after = datetime(begin.year + begin.month // 12, begin.month % 12 + 1, 1, tzinfo=UTC)
    return _time(begin.timestamp()), _time(after.timestamp())


def _safe(value: Any) -> Any:
    """No cell that a spreadsheet would run: names come from clients."""
    if value is None:
        return ""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
