"""Every error has OpenAI's body, all four keys, on every route."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, JSON_HEADERS, Response, ask, call, chat, completion, connect, gateway, get, lifespan
from decodeloop.gateway.settings import GatewaySettings, Limits
from decodeloop.types import Chunk, Request, RequestRefused
from scripted import FOREVER, ScriptedUpstream, Step, says


def upstream() -> ScriptedUpstream:
    return ScriptedUpstream(says("x"))


def error_of(got: Response, status: int, kind: str, code: str | None = None, param: str | None = None) -> str:
    assert got.status == status, got.body
    assert got.headers["content-type"] == "application/json"
    assert got.headers["x-request-id"]
    error = got.json()["error"]
    assert list(got.json()) == ["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["type"], error["code"], error["param"]) == (kind, code, param)
    assert error["message"]
    return str(error["message"])


def send(method: str, path: str, body: Any = b"", headers: dict[str, str] = JSON_HEADERS, **settings: Any) -> Response:
    async def run() -> Response:
        return await call(gateway(upstream(), **settings), method, path, body, headers)

    return asyncio.run(run())


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/v2", "/v1/chat/completions/", "//", "/v1/Models"])
def test_unknown_urls(method: str, path: str) -> None:
    assert path in error_of(send(method, path), 404, "not_found_error", "unknown_url")


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", CHAT, "POST"),
        ("PUT", COMPLETIONS, "POST"),
        ("POST", "/v1/models", "GET, HEAD"),
        ("DELETE", "/", "GET, HEAD"),
    ],
)
def test_wrong_methods(method: str, path: str, allowed: str) -> None:
    got = send(method, path)
    error_of(got, 405, "invalid_request_error")
    assert sorted(got.headers["allow"].split(", ")) == sorted(allowed.split(", "))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "json"},
    ],
)
def test_other_content_types(headers: dict[str, str]) -> None:
    error_of(send("POST", CHAT, chat(), headers), 415, "invalid_request_error", param="content-type")


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", "application/vnd.api+json"])
def test_json_content_types(kind: str) -> None:
    assert send("POST", CHAT, chat(), {"content-type": kind}).status == 200


def test_compressed_bodies() -> None:
    headers = {**JSON_HEADERS, "content-encoding": "gzip"}
    error_of(send("POST", CHAT, chat(), headers), 415, "invalid_request_error", param="content-encoding")


@pytest.mark.parametrize("declared", [{}, {"content-length": "1001"}])
def test_large_bodies(declared: dict[str, str]) -> None:
    body = chat(user="x" * 1000)
    got = send("POST", CHAT, body, {**JSON_HEADERS, **declared}, limits=Limits(max_body_bytes=1000))
    assert "1000 bytes" in error_of(got, 413, "invalid_request_error")
    assert got.headers["connection"] == "close"


def test_a_body_that_does_not_come() -> None:
    async def run() -> Response:
        connection = connect(gateway(upstream(), limits=Limits(body_timeout_s=0.02)), "POST", CHAT)
        connection.sent.clear()
        connection.incoming.get_nowait()  # the body's message: it never arrives
        return await connection.response()

    error_of(asyncio.run(run()), 408, "timeout_error")


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_an_unknown_model(path: str) -> None:
    body = {**(chat() if path == CHAT else completion()), "model": "gpt-9"}
    told = error_of(ask(upstream(), path, body), 404, "not_found_error", "model_not_found", "model")
    assert "choose from: tiny" in told


def test_no_such_model_page() -> None:
    error_of(get(upstream(), "/v1/models/a/b"), 404, "not_found_error", "model_not_found", "model")


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (
            RequestRefused("too long", status=400, param="prompt", code="context_length_exceeded"),
            "invalid_request_error",
        ),
        (RequestRefused("no", status=403), "permission_error"),
        (RequestRefused("twice", status=409), "conflict_error"),
        (RequestRefused("what", status=422), "invalid_request_error"),
        (RequestRefused("full", status=429, code="queue_full"), "rate_limit_error"),
        (RequestRefused("died", status=500), "server_error"),
        (RequestRefused("gone", status=503), "server_error"),
    ],
)
def test_what_the_upstream_refuses_keeps_its_status(refused: RequestRefused, kind: str) -> None:
    got = ask(ScriptedUpstream(lambda _: [refused]), CHAT, chat(), retry_after_s=7)
    assert error_of(got, refused.status, kind, refused.code, refused.param) == refused.message
    assert got.headers.get("retry-after") == ("7" if refused.status in (429, 503) else None)


@pytest.mark.parametrize("stream", [False, True])
def test_our_own_faults_keep_their_details_in_the_log(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    broken = ScriptedUpstream(lambda _: [ZeroDivisionError("/secret/path")])
    got = ask(broken, CHAT, chat(stream=stream), {"x-request-id": "r-7"})
    assert "r-7" in error_of(got, 500, "server_error")
    assert b"secret" not in got.body
    assert "/secret/path" in caplog.text
    assert "r-7" in caplog.text


@pytest.mark.parametrize("path", ["/v1/policy", "/metrics", "/v1/models", "/ready"])
def test_a_page_whose_source_is_broken(path: str) -> None:
    class Broken(ScriptedUpstream):
        def fail(self) -> Any:
            raise KeyError("secret")

        describe = counters = models = ready = fail

    error_of(get(Broken(says("x")), path), 500, "server_error")


# Ids and traces


def test_request_ids_are_echoed_or_made() -> None:
    assert get(upstream(), "/health", {"x-request-id": "a.B:c/1"}).headers["x-request-id"] == "a.B:c/1"
    made = {get(upstream(), "/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    for bad in ("", "a b", "a\x7f", "x" * 129, "é", "a\r\nset-cookie: b"):
        echoed = get(upstream(), "/health", {"x-request-id": bad}).headers["x-request-id"]
        assert echoed != bad
        assert echoed.isalnum()


def test_the_trace_is_passed_through_where_it_is_one() -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    assert ask(upstream(), CHAT, chat(stream=True), {"traceparent": trace}).headers["traceparent"] == trace
    assert "traceparent" not in get(upstream(), "/health", {"traceparent": "x"}).headers


# Keys


def test_keys() -> None:
    keys = ("first-key", "sécond")
    for path in ("/v1/models", "/v1/models/tiny", "/v1/policy"):
        error_of(get(upstream(), path, api_keys=keys), 401, "authentication_error", "invalid_api_key")
    served = upstream()
    for bad in (
        "",
        "Bearer",
        "Bearer ",
        "first-key",
        "Basic first-key",
        "Bearer wrong",
        "Bearer ' OR '1'='1",
        "Bearer é",
    ):
        got = ask(served, CHAT, chat(), {"authorization": bad}, api_keys=keys)
        error_of(got, 401, "authentication_error", "invalid_api_key")
        assert got.headers["www-authenticate"] == "Bearer"
    assert served.requests == []
    assert ask(served, CHAT, chat(), {"authorization": "bearer first-key"}, api_keys=keys).status == 200
    identity = served.requests[0].identity
    assert identity.organization == "local"
    assert identity.key_id
    assert "first" not in identity.key_id
    for path in ("/", "/health", "/ready", "/metrics"):
        assert get(upstream(), path, api_keys=keys).status == 200


def test_no_keys_is_an_open_door() -> None:
    served = upstream()
    assert ask(served, CHAT, chat(), {"authorization": "Bearer anything"}).status == 200
    assert served.requests[0].identity.key_id == ""


# Admission and readiness


def test_too_many_at_once() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="x")
        yield FOREVER

    async def run() -> None:
        app = gateway(ScriptedUpstream(script), limits=Limits(max_concurrent_requests=2))
        held = [connect(app, "POST", CHAT, chat(stream=True)) for _ in range(2)]
        for connection in held:
            await connection.wrote(b"x")
        got = await call(app, "POST", CHAT, chat())
        error_of(got, 429, "rate_limit_error", "server_busy")
        assert got.headers["retry-after"] == "1"
        assert (await call(app, "GET", "/v1/models")).status == 200
        held[0].disconnect()
        await held[0].task
        waiting = connect(app, "POST", CHAT, chat(stream=True))
        await waiting.wrote(b"x")
        for connection in (held[1], waiting):
            connection.disconnect()
            await connection.task

    asyncio.run(run())


def test_not_ready() -> None:
    waking = upstream()
    waking.is_ready = False
    for got in (get(waking, "/ready"), ask(waking, CHAT, chat())):
        error_of(got, 503, "server_error", "not_ready")
        assert got.headers["retry-after"] == "1"
    assert get(waking, "/health").json() == {"status": "ok"}
    assert get(upstream(), "/ready").json() == {"status": "ready"}


def test_draining() -> None:
    async def run() -> None:
        served = upstream()
        app = gateway(served)
        async with lifespan(app):
            assert served.started
            assert not served.stopped
        assert served.stopped
        error_of(await call(app, "POST", CHAT, chat()), 503, "server_error", "shutting_down")
        error_of(await call(app, "GET", "/ready"), 503, "server_error", "shutting_down")

    asyncio.run(run())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"port": 70000}, "port"),
        ({"heartbeat_s": 0}, "heartbeat_s"),
        ({"api_keys": ("",)}, "api_keys"),
        ({"retry_after_s": -1}, "retry_after_s"),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        GatewaySettings(**settings)
    with pytest.raises(ValueError, match="max_body_bytes"):
        Limits(max_body_bytes=0)
