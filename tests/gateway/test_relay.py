"""Requests that another server answers."""

from __future__ import annotations

import asyncio
import errno

import orjson
import pytest

from asgi import CHAT, COMPLETIONS, call, chat, completion, connect
from decodeloop.gateway.breaker import BreakerSettings
from elsewhere import (
    DONE,
    END,
    USAGE_EVENT,
    Elsewhere,
    answers,
    breaks,
    event,
    gateway_before,
    piece,
    streams,
)

SAYS = [event(piece(text)) for text in ("žlutý ", "kůň ", "🐴")]
WHOLE = [*SAYS, END, USAGE_EVENT, DONE]


async def metric(app, name: str) -> float:
    page = (await call(app, "GET", "/metrics")).body.decode()
    return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(name))


def test_an_answer_comes_back_byte_for_byte():
    async def run() -> None:
        server = Elsewhere(answers())
        async with gateway_before(server) as app:
            got = await call(app, "POST", CHAT, chat(temperature=0.5, guided_anything={"x": [1]}))
            assert got.status == 200
            assert got.json()["choices"][0]["message"]["content"] == "yes"
            assert got.headers["x-decodeloop-pool"] == "default"
            assert server.bodies == [chat(temperature=0.5, guided_anything={"x": [1]})], "unknown fields are its own"
            assert (await call(app, "POST", COMPLETIONS, completion(n=2))).status == 200
            assert await metric(app, "vllm:generation_tokens_total") == 6
            assert await metric(app, "vllm:prompt_tokens_total") == 14

    asyncio.run(run())


@pytest.mark.parametrize("wants_usage", [False, True])
def test_a_stream_comes_back_byte_for_byte_however_it_was_cut(wants_usage):
    text = b"".join(WHOLE)
    shown = text if wants_usage else text.replace(USAGE_EVENT, b"")
    cuts = [[text[:at], 0.0, text[at:]] for at in range(1, len(text), 7)]
    cuts.append([part for place in range(0, len(text), 3) for part in (text[place : place + 3], 0.0)])

    async def run() -> None:
        server = Elsewhere(answers())
        async with gateway_before(server) as app:
            for parts in cuts:
                server.play = streams(*parts)
                options = {"stream_options": {"include_usage": True}} if wants_usage else {}
                got = await call(app, "POST", CHAT, chat(stream=True, **options))
                assert got.body == shown
            assert server.bodies[0]["stream_options"] == {"include_usage": True}, "usage is always asked for"
            assert await metric(app, "vllm:generation_tokens_total") == 3 * len(cuts)

    asyncio.run(run())


def test_events_are_passed_on_one_by_one():
    async def run() -> None:
        async with gateway_before(Elsewhere(streams(SAYS[0], 60.0))) as app:
            connection = connect(app, "POST", CHAT, chat(stream=True))
            await connection.wrote(SAYS[0])
            connection.disconnect()
            await connection.task

    asyncio.run(run())


def test_a_client_that_leaves_is_followed_by_the_gateway():
    async def run() -> None:
        server = Elsewhere(streams(*SAYS, 60.0))
        async with gateway_before(server) as app:
            connections = [connect(app, "POST", CHAT, chat(stream=True)) for _ in range(3)]
            for connection in connections:
                await connection.wrote(SAYS[-1])
                connection.disconnect()
            server.play = streams(60.0)  # before the first event
            connections.append(connect(app, "POST", CHAT, chat(stream=True)))
            server.play = answers(after_s=60.0)  # a whole answer
            connections.append(connect(app, "POST", CHAT, chat()))
            while len(server.bodies) < 5:
                await asyncio.sleep(0.005)
            for connection in connections[3:]:
                connection.disconnect()
            await asyncio.gather(*(connection.task for connection in connections))
            while server.open:
                await asyncio.sleep(0.005)
            assert server.gone == 5
            assert await metric(app, "decodeloop_requests_in_flight") == 0

    asyncio.run(run())


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


def test_what_is_left_out_and_what_is_added():
    async def run() -> None:
        server = Elsewhere(answers(), models=("big/model",))
        remote = {"engine": "vllm", "api_key": "secret", "models": {"tiny": "big/model"}}
        async with gateway_before(server, remote=remote) as app:
            listed = (await call(app, "GET", "/v1/models")).json()["data"]
            assert [(each["id"], each["max_model_len"]) for each in listed] == [("tiny", 2048)]
            headers = {
                "content-type": "application/json",
                "authorization": "Bearer mine",
                "x-request-id": "abc",
                "x-forwarded-for": "1.2.3.4",
                "cookie": "a=b",
            }
            await call(app, "POST", CHAT, chat(decodeloop={"class": "code"}), headers)
            assert server.bodies == [{**chat(), "model": "big/model"}]
            sent = {name.lower(): value for name, value in server.headers[0].items()}
            assert sent["authorization"] == "Bearer secret"
            assert sent["x-request-id"] == "abc"
            assert not sent.keys() & {"x-forwarded-for", "cookie"}

    asyncio.run(run())


def test_bad_routing_fields_are_refused_before_anyone_is_asked():
    async def run() -> None:
        server = Elsewhere(answers())
        async with gateway_before(server) as app:
            for wrong in (
                {"decodeloop": {"speculation": "maybe"}},
                {"decodeloop": {"colour": "red"}},
                {"n": 0},
                {"n": 10**6},
                {"stream": "yes"},
                {"model": 3},
                {"max_tokens": -1},
            ):
                assert (await call(app, "POST", CHAT, chat(**wrong))).status == 400, wrong
            assert (await call(app, "POST", CHAT, chat(model="none"))).status == 404
            assert (await call(app, "POST", CHAT, b"[")).status == 400
            assert server.bodies == []

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


def test_a_server_without_metrics_serves_all_the_same():
    async def run() -> None:
        server = Elsewhere(answers(), metrics=None)
        async with gateway_before(server, remote={"engine": "llamacpp"}) as app:
            assert (await call(app, "GET", "/ready")).status == 200
            assert (await call(app, "POST", CHAT, chat())).status == 200

    asyncio.run(run())


@pytest.mark.parametrize("field", ["messages", "tools", "metadata"])
def test_a_number_that_nobody_can_read_is_refused(field):
    async def run() -> None:
        server = Elsewhere(answers())
        async with gateway_before(server) as app:
            huge = {"messages": [{"role": "user", "content": "Hi", "n": 2**70}], "tools": [{"n": 2**70}]}
            got = await call(app, "POST", CHAT, chat(**{field: huge.get(field, {"n": 2**70})}))
            assert (got.status, server.bodies) == (400, [])
            assert "64 bits" in got.json()["error"]["message"]

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
