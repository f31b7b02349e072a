"""Spans and metrics for OpenTelemetry, by its own SDK (the extra `otel`)."""

from __future__ import annotations

from opentelemetry import context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from decodeloop.gateway import semconv
from decodeloop.gateway.telemetry import Finished

__all__ = ["OtelObserver"]

NANOS = 1_000_000_000
SCOPE = "decodeloop.gateway"


class OtelObserver:
    """A span a request, below its caller's where there is a `traceparent`; the SDK exports in a thread of its own."""

    def __init__(self, tracers: TracerProvider, meters: MeterProvider) -> None:
        self._tracer = tracers.get_tracer(SCOPE)
        meter = meters.get_meter(SCOPE)
        self._tokens = meter.create_histogram(semconv.TOKENS, "{token}", "Tokens used")
        self._duration = meter.create_histogram(semconv.DURATION, "s", "From arrival to end")
        self._per_token = meter.create_histogram(semconv.PER_TOKEN, "s", "Per output token after the first")
        self._ttft = meter.create_histogram(semconv.TTFT, "s", "From arrival to the first content")
        self._traces = TraceContextTextMapPropagator()

    def finished(self, request: Finished) -> None:
        self._span(request)
        self._measure(request)

    def _span(self, request: Finished) -> None:
        carrier = {} if request.traceparent is None else {"traceparent": request.traceparent}
        span = self._tracer.start_span(
            f"{request.operation} {request.model}",
            self._traces.extract(carrier, context.Context()),
            SpanKind.SERVER,
            semconv.span_attributes(request),
            start_time=int(request.started_s * NANOS),
        )
        if request.error is not None:
            span.set_status(Status(StatusCode.ERROR, request.error))
        span.end(int(request.ended_s * NANOS))

    def _measure(self, request: Finished) -> None:
        told = semconv.metric_attributes(request)
        self._duration.record(request.ended_s - request.started_s, told)
        if request.ttft_s is not None:
            self._ttft.record(request.ttft_s, told)
        if request.tpot_s is not None:
            self._per_token.record(request.tpot_s, told)
        if request.usage is not None:
            self._tokens.record(request.usage.prompt, {**told, semconv.TOKEN_TYPE: "input"})
            self._tokens.record(request.usage.completion, {**told, semconv.TOKEN_TYPE: "output"})
