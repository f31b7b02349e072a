"""A line for every request that is posted."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest

from decodeloop.gateway.access_log import WAIT_S, AccessLog


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_lines_of_one_moment_are_written_together_and_say_when_each_was_told(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> tuple[list[str], float, float]:
        log = AccessLog()
        began_s = time.time()
        log.tell("a", "POST", "/v1/completions", 200, 0.0123)
        log.tell("b", "POST", "/v1/chat/completions", 429, 0.5)
        ended_s = time.time()
        early = lines(caplog)
        await asyncio.sleep(2 * WAIT_S)
        return early, began_s, ended_s

    with caplog.at_level(logging.INFO, "decodeloop.gateway"):
        early, began_s, ended_s = asyncio.run(run())
    assert early == []
    assert lines(caplog) == ["a POST /v1/completions 200 12.3 ms", "b POST /v1/chat/completions 429 500.0 ms"]
    for record in caplog.records:
        assert began_s <= record.created <= ended_s
        assert 0 <= record.msecs < 1000
        assert (record.levelname, record.name) == ("INFO", "decodeloop.gateway.access_log")


def test_pages_are_told_to_who_debugs(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        log = AccessLog()
        log.tell("a", "GET", "/health", 200, 0.001)
        log.write()

    with caplog.at_level(logging.INFO, "decodeloop.gateway"):
        asyncio.run(run())
    assert lines(caplog) == []
    with caplog.at_level(logging.DEBUG, "decodeloop.gateway"):
        asyncio.run(run())
    assert lines(caplog) == ["a GET /health 200 1.0 ms"]


def test_what_waits_is_written_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        log = AccessLog()
        log.tell("a", "POST", "/v1/completions", 200, 0.0)
        log.write()
        log.tell("b", "POST", "/v1/completions", 200, 0.0)
        log.write()

    with caplog.at_level(logging.INFO, "decodeloop.gateway"):
        asyncio.run(run())
    assert [line[0] for line in lines(caplog)] == ["a", "b"]
