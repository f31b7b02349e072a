"""Whatever fits our own OpenAPI, and much that doesn't, gets an answer: no 500, no hang, errors in one shape."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from decodeloop.gateway.openapi import describe
from live import served
from scripted import ScriptedUpstream, says

SCHEMA = schemathesis.openapi.from_dict(describe())


@pytest.fixture(scope="module")
def url():
    with served(ScriptedUpstream(says("so"))) as live:
        yield live.url


@SCHEMA.parametrize()
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_operation_answers(case, url):
    response = case.call(base_url=url, timeout=20)
    assert response.status_code < 500 or case.path == "/ready", response.text
    if response.status_code >= 400:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
