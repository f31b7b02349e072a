"""Telemetry to a real collector's address, and to the log."""

from __future__ import annotations

import json
import logging
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from decodeloop.cli.log_lines import LINE, LineFormatter
from decodeloop.cli.telemetry import TelemetrySettings, open_observer
from decodeloop.gateway.telemetry import Finished
from decodeloop.types import Usage

REQUEST = Finished(
    request_id="r1", operation="chat", model="small", usage=Usage(1, 0, 2), started_s=1.0, ended_s=2.0, ttft_s=0.5
)


def test_spans_and_metrics_reach_a_collector():
    posted: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append((self.path, self.rfile.read(int(self.headers["content-length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    observer, close = open_observer(TelemetrySettings(otlp_url=f"http://127.0.0.1:{server.server_port}"))
    observer.finished(REQUEST)
    close()
    server.shutdown()
    server.server_close()
    thread.join()
    assert {path for path, _ in posted} == {"/v1/traces", "/v1/metrics"}


def test_a_line_a_request(caplog):
    observer, close = open_observer(TelemetrySettings(request_log=True))
    with caplog.at_level(logging.INFO, "decodeloop.requests"):
        observer.finished(REQUEST)
    close()
    told = json.loads(caplog.records[0].getMessage())
    assert (told["request_id"], told["usage"]["completion"], told["error"]) == ("r1", 2, None)


def test_nobody_is_told_by_default():
    observer, close = open_observer(TelemetrySettings())
    assert observer is None
    close()


def test_settings_that_make_no_sense():
    for wrong in ({"otlp_url": "collector:4318"}, {"export_interval_s": 0.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            TelemetrySettings(**wrong)


def test_log_lines_say_what_loggings_own_would():
    own, stock = LineFormatter(), logging.Formatter(LINE)
    for created in (1_800_000_000.0, 1_800_000_000.999, 1_800_000_001.25, 1_700_000_000.5):
        record = logging.LogRecord("decodeloop.requests", logging.INFO, "", 0, "%s ended", ("r1",), None)
        record.created, record.msecs = created, (created - int(created)) * 1000
        assert own.format(record) == stock.format(record)
