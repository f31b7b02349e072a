"""Spans and metrics, as OpenTelemetry's own SDK hands them over."""

from __future__ import annotations

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from decodeloop.gateway.otel import OtelObserver
from decodeloop.gateway.telemetry import Finished
from decodeloop.types import Identity, Usage

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def request(**changes: object) -> Finished:
    values: dict[str, object] = {
        "request_id": "r1",
        "operation": "chat",
        "model": "small",
        "response_id": "chatcmpl-1",
        "upstream": "embedded",
        "pool": "fast",
        "request_class": "sql",
        "identity": Identity("acme", agent="reviewer"),
        "asked": {"temperature": 0.5, "stop": ["a", "b"], "messages": [{"content": "secret"}], "seed": 3},
        "usage": Usage(20, 4, 30, 12, 10, 7),
        "finish_reasons": ("stop",),
        "started_s": 100.0,
        "ended_s": 102.5,
        "ttft_s": 0.25,
        "tpot_s": 0.075,
        **changes,
    }
    return Finished(**values)  # type: ignore[arg-type]


def told(*requests: Finished):
    spans, reader = InMemorySpanExporter(), InMemoryMetricReader()
    tracers = TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(spans))
    observer = OtelObserver(tracers, MeterProvider([reader]))
    for each in requests:
        observer.finished(each)
    data = reader.get_metrics_data()
    metrics = {
        metric.name: metric.data.data_points
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    return spans.get_finished_spans(), metrics


def test_a_request_is_a_span_with_the_agreed_names():
    (span,), _ = told(request())
    assert span.name == "chat small"
    assert (span.end_time - span.start_time) == 2_500_000_000
    assert dict(span.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "decodeloop",
        "gen_ai.request.model": "small",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.stop_sequences": ("a", "b"),
        "gen_ai.request.seed": 3,
        "gen_ai.response.id": "chatcmpl-1",
        "gen_ai.response.model": "small",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.agent.id": "reviewer",
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 30,
        "gen_ai.usage.cache_read.input_tokens": 4,
        "decodeloop.usage.drafted_tokens": 12,
        "decodeloop.usage.verified_tokens": 10,
        "decodeloop.usage.accepted_tokens": 7,
        "decodeloop.request_id": "r1",
        "decodeloop.organization": "acme",
        "decodeloop.pool": "fast",
        "decodeloop.class": "sql",
        "decodeloop.upstream": "embedded",
        "decodeloop.route": "",
        "http.response.status_code": 200,
    }
    assert "secret" not in str(span.attributes)
    assert span.status.status_code is StatusCode.UNSET


def test_it_hangs_below_its_caller():
    (below, root), _ = told(request(traceparent=f"00-{TRACE}-00f067aa0ba902b7-01"), request())
    assert f"{below.context.trace_id:032x}" == TRACE
    assert f"{below.parent.span_id:016x}" == "00f067aa0ba902b7"
    assert root.parent is None


def test_a_failure_is_marked():
    (span,), metrics = told(request(error="upstream_failed", status=502, usage=None, ttft_s=None, tpot_s=None))
    assert span.status.status_code is StatusCode.ERROR
    assert span.attributes["error.type"] == "upstream_failed"
    assert set(metrics) == {"gen_ai.server.request.duration"}


def test_metrics():
    _, metrics = told(request(), request())
    by_type = {point.attributes["gen_ai.token.type"]: point.sum for point in metrics["gen_ai.client.token.usage"]}
    assert by_type == {"input": 40, "output": 60}
    assert metrics["gen_ai.server.request.duration"][0].sum == 5.0
    assert metrics["gen_ai.server.time_to_first_token"][0].sum == 0.5
    assert metrics["gen_ai.server.time_per_output_token"][0].count == 2
    assert "decodeloop.organization" not in metrics["gen_ai.server.request.duration"][0].attributes
