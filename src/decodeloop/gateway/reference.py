"""POST /v1/chat/speculative-completions: one prompt in, one set of figures out, over the same router and engine."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

import orjson
from msgspec import Meta, Struct

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.body import checked, read_object
from decodeloop.types import RequestClass, RequestRefused, Usage

__all__ = ["Reference", "ReferenceBody"]

CHAT_PATH = "/v1/chat/completions"
DOMAINS = (
    RequestClass.CODE_SYNTHESIS,
    RequestClass.STRUCTURED_JSON,
    RequestClass.RAG_SUMMARY,
    RequestClass.CREATIVE_WRITING,
    RequestClass.GENERAL_CHAT,
)


class ReferenceBody(Struct, forbid_unknown_fields=True):
    request_id: Annotated[str, Meta(min_length=1, max_length=128)]
    prompt: Annotated[str, Meta(min_length=1)]
    domain: str
    max_tokens: Annotated[int, Meta(ge=1, le=4096)] = 256
    temperature: Annotated[float, Meta(ge=0, le=2)] = 1.0
    force_speculative: bool = False


class Reference:
    """chat: the handler of chat completions, which answers in its stead."""

    def __init__(self, chat: Callable[[Exchange], Awaitable[None]], admission: Admission, limits: Limits) -> None:
        self._chat, self._admission, self._limits = chat, admission, limits

    async def __call__(self, exchange: Exchange) -> None:
        body: ReferenceBody = checked(
            read_object(await exchange.read_json(self._limits), max_depth=self._limits.max_json_depth), ReferenceBody
        )
        if body.domain not in DOMAINS:
            raise RequestRefused(f"no domain {body.domain[:60]!r}; choose from {', '.join(DOMAINS)}", param="domain")
        began_s = time.monotonic()
        active = self._admission.in_flight + 1
        inner = exchange.instead(CHAT_PATH, orjson.dumps(_chat_body(body)))
        try:
            await self._chat(inner)
        finally:
            exchange.trail = inner.trail
        exchange.told += inner.told
        answer = orjson.loads(inner.captured)
        await exchange.respond(
            200,
            orjson.dumps(_told(body.request_id, answer, dict(inner.told), 1e3 * (time.monotonic() - began_s), active)),
        )


def _chat_body(body: ReferenceBody) -> dict[str, Any]:
    wish = {"class": body.domain, "speculation": "force" if body.force_speculative else "auto"}
    return {
        "messages": [{"role": "user", "content": body.prompt}],
        "max_tokens": body.max_tokens,
        "temperature": body.temperature,
        "decodeloop": wish,
    }


def _told(
    request_id: str, answer: Mapping[str, Any], headers: Mapping[bytes, bytes], latency_ms: float, active: int
) -> dict[str, Any]:
    usage = _usage(answer)
    speculated = usage.verified > 0
    return {
        "request_id": request_id,
        "execution_mode": "speculative_accelerated" if speculated else "standard_autoregressive",
        "routing_reason": _reason(answer, headers),
        "total_tokens": usage.completion,
        "total_latency_ms": latency_ms,
        "time_per_token_ms": latency_ms / max(usage.completion, 1),
        "tokens_proposed": usage.drafted,
        "tokens_accepted": usage.accepted,
        "step_acceptance_rate": usage.accepted / usage.verified if speculated else 0.0,
        "active_concurrency": active,
        "completion": answer["choices"][0]["message"]["content"],
    }


def _usage(answer: Mapping[str, Any]) -> Usage:
    counts = answer.get("usage") or {}
    own = answer.get("decodeloop")
    if own is None:
        other = (answer.get("metrics") or {}).get("speculative_decoding") or {}
        timings = answer.get("timings") or {}
        drafted = other.get("num_draft_tokens", timings.get("draft_n", 0))
        own = {
            "drafted": drafted,
            "verified": drafted,
            "accepted": other.get("num_accepted_draft_tokens", timings.get("draft_n_accepted", 0)),
        }
    return Usage(
        prompt=counts.get("prompt_tokens", 0),
        completion=counts.get("completion_tokens", 0),
        drafted=own["drafted"],
        verified=own["verified"],
        accepted=own["accepted"],
    )


def _reason(answer: Mapping[str, Any], headers: Mapping[bytes, bytes]) -> str:
    """Why this pool, then why its engine drafted as it did, most often first."""
    route, pool = headers[b"x-decodeloop-route"].decode(), headers[b"x-decodeloop-pool"].decode()
    steps = (answer.get("decodeloop") or {}).get("reasons") or {}
    parts = [f"pool {pool}: {route}"]
    parts += [f"{reason} in {count} steps" for reason, count in sorted(steps.items(), key=lambda item: -item[1])]
    if b"x-decodeloop-denied" in headers:
        parts.append(f"denied: {headers[b'x-decodeloop-denied'].decode()}")
    return "; ".join(parts)
