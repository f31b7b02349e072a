"""What a client is told of its limits: headers, and refusals by the books."""

from __future__ import annotations

import math
from collections.abc import Sequence

from decodeloop.gateway.store import Opening, Refusal, Reserved
from decodeloop.governance.quota import Hold, Limit, Unit
from decodeloop.types import RequestRefused

__all__ = ["IDEMPOTENCY", "key_refusal", "rate_headers", "refusal_of"]

IDEMPOTENCY = "idempotency-key"


def refusal_of(reserved: Reserved, opening: Opening, limits: Sequence[Limit], now_s: float) -> RequestRefused:
    """A refusal by the books, in words."""
    if reserved.refusal is not None and reserved.refusal is not Refusal.LIMIT:
        return key_refusal(reserved.refusal, reserved.earlier)
    hold = opening.holds[reserved.place]
    id = hold.counter.partition("|")[0]
    limit = next(each for each in limits if each.id == id)
    left = max(0, hold.cap - reserved.used[reserved.place])
    message = (
        f"limit {id!r} ({_amount(hold.unit, hold.cap)} a {limit.window.value}) has {_amount(hold.unit, left)} left; "
        f"this request may need {_amount(hold.unit, hold.amount)}"
    ).replace("a total)", "in total)")
    possible = hold.amount <= hold.cap
    if limit.is_rate and possible:
        wait_s = limit.window.frees_s(now_s)
        return RequestRefused(message, status=429, code="rate_limit_exceeded", retry_after_s=wait_s)
    return RequestRefused(message, status=429, code="insufficient_quota", retry_after_s=math.inf)


def key_refusal(refusal: Refusal, earlier: str) -> RequestRefused:
    """earlier: the request that has the idempotency key."""
    if refusal is Refusal.IN_FLIGHT:
        return RequestRefused(
            "the request with this idempotency key is being answered", status=409, param=IDEMPOTENCY,
            code="idempotency_key_in_flight", retry_after_s=1.0,
        )  # fmt: skip
    if refusal is Refusal.USED:
        return RequestRefused(
            f"the request with this idempotency key was billed as {earlier}; its answer is not kept",
            status=409, param=IDEMPOTENCY, code="idempotency_key_used", retry_after_s=math.inf,
        )  # fmt: skip
    return RequestRefused(
        "this idempotency key belongs to another request", param=IDEMPOTENCY, code="idempotency_key_reused"
    )


def _amount(unit: Unit, amount: int) -> str:
    return f"{amount / 1e9:.6g}" if unit is Unit.MONEY else f"{amount} {unit.value}"


def rate_headers(
    limits: Sequence[Limit], holds: Sequence[Hold], used: Sequence[int], now_s: float
) -> list[tuple[bytes, bytes]]:
    """x-ratelimit-*: of requests and of tokens, the rate that has least left."""
    windows = {limit.id: limit.window for limit in limits if limit.is_rate}
    headers: list[tuple[bytes, bytes]] = []
    for unit in (Unit.REQUESTS, Unit.TOKENS):
        standing = [
            (max(0, hold.cap - before - hold.amount), hold)
            for hold, before in zip(holds, used, strict=False)
            if hold.unit is unit and hold.counter.partition("|")[0] in windows
        ]
        if standing:
            left, hold = min(standing, key=lambda each: each[0])
            reset_s = windows[hold.counter.partition("|")[0]].frees_s(now_s) or 0.0
            for name, value in (
                ("limit", f"{hold.cap}"),
                ("remaining", f"{left}"),
                ("reset", f"{1e3 * reset_s:.0f}ms"),
            ):
                headers.append((f"x-ratelimit-{name}-{unit.value}".encode(), value.encode()))
    return headers
