"""Who is told of requests: OpenTelemetry's exporters, and a log of one JSON line each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import msgspec

from decodeloop import __version__, config
from decodeloop.gateway.telemetry import Finished, Observer


@dataclass(frozen=True, slots=True)
class TelemetrySettings:
    """otlp_url: of a collector that takes OTLP over HTTP, up to where `/v1/traces` begins. request_log: a line of JSON
    a request, to the log."""

    otlp_url: str | None = None
    service_name: str = "decodeloop"
    export_interval_s: float = 15.0
    request_log: bool = False

    def __post_init__(self) -> None:
        if self.otlp_url is not None and not self.otlp_url.startswith(("http://", "https://")):
            raise ValueError(f"otlp_url must begin with http:// or https://, not {self.otlp_url!r}")
        if self.export_interval_s <= 0:
            raise ValueError("export_interval_s must be above 0")


class RequestLog:
    def __init__(self) -> None:
        self._log = logging.getLogger("decodeloop.requests")

    def finished(self, request: Finished) -> None:
        self._log.info("%s", msgspec.json.encode(asdict(request)).decode())


class Several:
    def __init__(self, observers: Sequence[Observer]) -> None:
        self._observers = observers

    def finished(self, request: Finished) -> None:
        for observer in self._observers:
            observer.finished(request)


def open_observer(settings: TelemetrySettings) -> tuple[Observer | None, Callable[[], None]]:
    """The observer, and what to call at the end, which sends what is left.

    Raises:
        ConfigError: exporting needs a package that is not installed.
    """
    observers: list[Observer] = [RequestLog()] if settings.request_log else []
    close = _nothing
    if settings.otlp_url is not None:
        exporter, close = _exporter(settings, settings.otlp_url)
        observers.append(exporter)
    if not observers:
        return None, close
    return (observers[0] if len(observers) == 1 else Several(observers)), close


def _exporter(settings: TelemetrySettings, url: str) -> tuple[Observer, Callable[[], None]]:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        from decodeloop.gateway.otel import OtelObserver
    except ImportError as error:
        raise config.ConfigError(f"telemetry.otlp_url needs `pip install 'decodeloop[otel]'` ({error})") from None
    resource = Resource.create({"service.name": settings.service_name, "service.version": __version__})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{url.rstrip('/')}/v1/traces")))
    reader = PeriodicExportingMetricReader(
        OTLPMetricExporter(endpoint=f"{url.rstrip('/')}/v1/metrics"),
        export_interval_millis=1e3 * settings.export_interval_s,
    )
    meters = MeterProvider([reader], resource=resource)

    def close() -> None:
        tracers.shutdown()
        meters.shutdown()

    return OtelObserver(tracers, meters), close


def _nothing() -> None:
    pass
