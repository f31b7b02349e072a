"""OpenTelemetry's names for generative models, which still move, in one place; ours carry our own prefix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from decodeloop.gateway.telemetry import Finished

__all__ = ["DURATION", "PER_TOKEN", "PROVIDER", "TOKENS", "TOKEN_TYPE", "TTFT", "metric_attributes", "span_attributes"]

PROVIDER = "decodeloop"

TOKENS = "gen_ai.client.token.usage"
TOKEN_TYPE = "gen_ai.token.type"
DURATION = "gen_ai.server.request.duration"
PER_TOKEN = "gen_ai.server.time_per_output_token"
TTFT = "gen_ai.server.time_to_first_token"

ASKED: Mapping[str, str] = {
    "max_tokens": "gen_ai.request.max_tokens",
    "max_completion_tokens": "gen_ai.request.max_tokens",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "seed": "gen_ai.request.seed",
    "stop": "gen_ai.request.stop_sequences",
    "n": "gen_ai.request.choice.count",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
}

Value = str | bool | int | float | list[str]


def metric_attributes(request: Finished) -> dict[str, Value]:
    """Few values each: they become labels."""
    told: dict[str, Value] = {
        "gen_ai.operation.name": request.operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": request.asked_model or request.model,
        "decodeloop.pool": request.pool,
        "decodeloop.class": request.request_class,
    }
    if request.error is not None:
        told["error.type"] = request.error
    return told


def span_attributes(request: Finished) -> dict[str, Value]:
    return dict(_attributes(request))


def _attributes(request: Finished) -> Iterator[tuple[str, Value]]:
    yield from metric_attributes(request).items()
    yield "gen_ai.response.model", request.model
    if request.response_id:
        yield "gen_ai.response.id", request.response_id
    if request.finish_reasons:
        yield "gen_ai.response.finish_reasons", list(request.finish_reasons)
    for name, value in request.asked.items():
        if name in ASKED:
            told = _value(value)
            if told is not None:
                yield ASKED[name], told
    if request.identity.agent:
        yield "gen_ai.agent.id", request.identity.agent
    if request.task:
        yield "gen_ai.conversation.id", request.task
    if request.batch:
        yield "decodeloop.batch", request.batch
    yield "decodeloop.request_id", request.request_id
    yield "decodeloop.organization", request.identity.organization
    yield "decodeloop.upstream", request.upstream
    yield "decodeloop.route", request.route
    yield "http.response.status_code", request.status
    yield from _usage(request)
    yield from _speculation(request)


def _usage(request: Finished) -> Iterator[tuple[str, Value]]:
    usage = request.usage
    if usage is None:
        return
    yield "gen_ai.usage.input_tokens", usage.prompt
    yield "gen_ai.usage.output_tokens", usage.completion
    yield "gen_ai.usage.cache_read.input_tokens", usage.cached
    yield "decodeloop.usage.drafted_tokens", usage.drafted
    yield "decodeloop.usage.verified_tokens", usage.verified
    yield "decodeloop.usage.accepted_tokens", usage.accepted


def _speculation(request: Finished) -> Iterator[tuple[str, Value]]:
    report = request.report
    if report is None:
        return
    if report.drafter is not None:
        yield "decodeloop.drafter", report.drafter
    for phase in ("queue", "prefill", "draft", "verify", "sample", "overhead"):
        yield f"decodeloop.{phase}_ms", getattr(report, f"{phase}_ms")
    yield "decodeloop.reasons", [f"{reason}={count}" for reason, count in sorted(report.reasons.items())]


def _value(value: object) -> Value | None:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return value
    return None
