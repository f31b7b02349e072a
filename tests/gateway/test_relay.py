"""Requests that another server answers."""

from __future__ import annotations

import asyncio

import pytest

from asgi import CHAT, COMPLETIONS, call, chat, completion, connect
from elsewhere import (
    SAYS,
    USAGE_EVENT,
    WHOLE,
    Elsewhere,
    answers,
    gateway_before,
    streams,
)


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
