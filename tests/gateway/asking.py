"""What the upstream is asked when a body is sent, or how the body is refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asgi import ask
from decodeloop.types import Request
from scripted import ScriptedUpstream, says


def asked(path: str, body: dict[str, Any], headers: Mapping[str, str] = {}) -> Request:
    upstream = ScriptedUpstream(says("x"))
    got = ask(upstream, path, body, headers)
    assert got.status == 200, got.body
    return upstream.requests[0]


def refused(path: str, body: Any, **settings: Any) -> dict[str, Any]:
    upstream = ScriptedUpstream(says("x"))
    got = ask(upstream, path, body, **settings)
    assert got.status == 400, got.body
    assert upstream.requests == []
    error: dict[str, Any] = got.json()["error"]
    assert error["type"] == "invalid_request_error"
    return error
