"""Servers elsewhere that fail, are slow, or are not there: another is asked, or the client told."""

from __future__ import annotations

import asyncio
import errno

import orjson
import pytest

from asgi import CHAT, call, chat
from decodeloop.gateway.breaker import BreakerSettings
from elsewhere import (
    SAYS,
    WHOLE,
    Elsewhere,
    answers,
    breaks,
    event,
    gateway_before,
    streams,
)


@pytest.mark.parametrize(
    "play", [breaks, answers(status=500), answers({"error": {}}, status=503), answers(status=404)], ids=str
)
@pytest.mark.parametrize("stream", [False, True])
def test_another_server_is_asked_while_nothing_was_said(play, stream):
    async def run() -> None:
        good = streams(*WHOLE) if stream else answers()
        servers = Elsewhere(play), Elsewhere(good)
        async with gateway_before(*servers) as app:
            for place in range(4):
                got = await call(app, "POST", CHAT, {**chat(stream=stream), "messages": [{"content": str(place)}]})
                assert got.status == 200
            assert len(servers[1].bodies) == 4

    asyncio.run(run())


def test_after_the_first_word_a_failure_is_told():
    async def run() -> None:
        servers = [Elsewhere(streams(SAYS[0])) for _ in range(2)]
        async with gateway_before(*servers) as app:
            got = await call(app, "POST", CHAT, chat(stream=True))
            first, error = got.events()
            assert first["choices"][0]["delta"]["content"] == "žlutý "
            assert set(error["error"]) == {"message", "type", "param", "code"}
            assert sum(len(server.bodies) for server in servers) == 1

    asyncio.run(run())


def test_an_error_event_is_a_failure():
    async def run() -> None:
        async with gateway_before(
            Elsewhere(streams(event({"error": {"message": "out of memory", "code": 500}})))
        ) as app:
            got = await call(app, "POST", CHAT, chat(stream=True))
            assert got.status == 502
            assert "out of memory" in got.json()["error"]["message"]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "told", "expected"),
    [
        (400, {"error": {"message": "too long", "code": 400, "param": None}}, (400, "too long", None)),
        (400, {"object": "error", "message": "no such thing", "code": "bad"}, (400, "no such thing", "bad")),
        (422, {"detail": "odd"}, (422, "odd", None)),
        (429, {"error": {"message": "busy"}}, (429, "busy", None)),
        (503, {}, (503, "upstream a refused the request (503)", None)),
        (
            401,
            {"error": {"message": "key abc is wrong"}},
            (502, "upstream a refuses the gateway (401)", "upstream_refused"),
        ),
        (500, {"error": {"message": "trace at 10.0.0.1"}}, (502, "upstream a failed (500)", "upstream_failed")),
        (302, {}, (502, "upstream a failed (302)", "upstream_failed")),
        (204, {}, (502, "upstream a failed (204)", "upstream_failed")),
    ],
)
def test_errors_keep_our_shape(status, told, expected):
    async def run() -> None:
        async with gateway_before(Elsewhere(answers(told, status=status))) as app:
            got = await call(app, "POST", CHAT, chat())
            error = got.json()["error"]
            assert (got.status, error["message"], error["code"]) == expected
            assert set(error) == {"message", "type", "param", "code"}

    asyncio.run(run())


def test_a_broken_server_is_left_alone_then_tried_again():
    async def run() -> None:
        server = Elsewhere(answers(status=500))
        breaker = BreakerSettings(faults_in_a_row=3, open_s=0.05)
        async with gateway_before(server, breaker=breaker) as app:
            for _ in range(3):
                assert (await call(app, "POST", CHAT, chat())).status == 502
            assert (await call(app, "POST", CHAT, chat())).status == 503
            assert len(server.bodies) == 3
            server.play = answers()
            await asyncio.sleep(0.06)
            assert (await call(app, "POST", CHAT, chat())).status == 200
            assert (await call(app, "POST", CHAT, chat())).status == 200

    asyncio.run(run())


def test_an_answer_that_takes_too_long_ends():
    from decodeloop.gateway.settings import Limits

    async def run() -> None:
        server = Elsewhere(answers(after_s=60.0))
        async with gateway_before(server, limits=Limits(request_timeout_s=0.05)) as app:
            got = await call(app, "POST", CHAT, chat())
            assert (got.status, got.json()["error"]["code"]) == (504, "timeout")
            while server.open:
                await asyncio.sleep(0.005)

    asyncio.run(run())


def test_a_server_that_is_down_at_the_start_is_found_later():
    async def run() -> None:
        server = Elsewhere(answers(), models=())
        async with gateway_before(server, remote={"poll_s": 0.02, "models": {"tiny": "x"}}) as app:
            assert (await call(app, "GET", "/ready")).status == 503
            server.models = ("x",)
            while (await call(app, "GET", "/ready")).status != 200:
                await asyncio.sleep(0.01)
            assert (await call(app, "POST", CHAT, chat())).status == 200
            assert orjson.dumps(server.bodies[0]).find(b'"x"') > 0

    asyncio.run(run())


def test_having_no_connection_left_is_not_the_servers_fault(monkeypatch):
    async def full(*args, **more):
        raise OSError(errno.EMFILE, "Too many open files")

    async def run() -> None:
        breaker = BreakerSettings(faults_in_a_row=1)
        async with gateway_before(Elsewhere(answers()), breaker=breaker, remote={"poll_s": 0.01}) as app:
            client = app.fleet.upstreams["a"]._client
            with monkeypatch.context() as patched:
                patched.setattr(asyncio.get_running_loop(), "create_connection", full)
                while client._idle:
                    client._idle.popleft().abort()
                    await asyncio.sleep(0)
                await asyncio.sleep(0.05)  # it is looked for meanwhile
                for _ in range(3):
                    got = await call(app, "POST", CHAT, chat())
                    assert (got.status, got.json()["error"]["code"]) == (503, "server_busy")
                assert app.fleet.members["a"].breaker.state == "closed"
            assert (await call(app, "POST", CHAT, chat())).status == 200

    asyncio.run(run())
