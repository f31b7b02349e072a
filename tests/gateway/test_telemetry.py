"""What observers are told of requests, whoever answers them and however they end."""

from __future__ import annotations

import asyncio

from asgi import CHAT, COMPLETIONS, call, chat, completion, connect
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.telemetry import Finished
from decodeloop.gateway.upstreams.remote import RemoteSettings
from decodeloop.types import RequestRefused, Usage
from elsewhere import DONE, END, USAGE_EVENT, Elsewhere, event, piece, streams
from scripted import FOREVER, ScriptedUpstream, says


class Listener:
    def __init__(self) -> None:
        self.heard: list[Finished] = []

    def finished(self, request: Finished) -> None:
        self.heard.append(request)


def test_answers_of_our_own_engine():
    async def run() -> None:
        ear = Listener()
        app = build_app(GatewaySettings(), {"own": ScriptedUpstream(says("a", "b", "c"))}, observer=ear)
        headers = {
            "content-type": "application/json",
            "x-session-id": "s1",
            "x-request-id": "r1",
            "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        }
        await call(app, "POST", CHAT, chat(temperature=0.25, decodeloop={"class": "sql"}), headers)
        await call(app, "POST", COMPLETIONS, completion(stream=True, stop="x"))
        await call(app, "GET", "/v1/models")
        first, second = ear.heard
        assert (first.operation, second.operation) == ("chat", "text_completion")
        assert (first.request_id, first.task, first.request_class) == ("r1", "s1", "sql")
        assert first.traceparent == headers["traceparent"]
        assert first.asked["temperature"] == 0.25
        assert second.asked["stop"] == ["x"]
        assert (first.pool, first.upstream, first.model) == ("default", "own", "tiny")
        assert first.usage == Usage(7, 4, 3)
        assert first.report is not None
        assert first.finish_reasons == ("stop",)
        assert first.error is None
        assert first.ttft_s is not None
        assert first.tpot_s is not None
        assert first.started_s <= first.ended_s

    asyncio.run(run())


def test_failures_are_told_also_after_the_start():
    async def run() -> None:
        ear = Listener()
        upstream = ScriptedUpstream(lambda request: [RequestRefused("broken", status=500, code="engine_failed")])
        app = build_app(GatewaySettings(), {"own": upstream}, observer=ear)
        await call(app, "POST", CHAT, chat())
        upstream.script = lambda request: [*list(says("a")(request))[:1], RequestRefused("broken", status=500)]
        await call(app, "POST", CHAT, chat(stream=True))
        await call(app, "POST", CHAT, chat(temperature=9))
        upstream.script = lambda request: [FOREVER]
        connection = connect(app, "POST", CHAT, chat())
        await asyncio.sleep(0.01)
        connection.disconnect()
        await connection.task
        assert [each.error for each in ear.heard] == ["engine_failed", "500", "400", "499"]
        assert [each.status for each in ear.heard] == [500, 200, 400, 499]

    asyncio.run(run())


def test_answers_from_elsewhere():
    async def run() -> None:
        ear = Listener()
        server = Elsewhere(streams(event(piece("x")), 0.01, event(piece("y")), END, USAGE_EVENT, DONE))
        async with server.serving() as url:
            app = build_app(GatewaySettings(upstreams={"there": RemoteSettings(url)}), {}, observer=ear)
            await app.fleet.start()
            await call(app, "POST", CHAT, chat(stream=True, seed=3))
            await app.fleet.close()
        (told,) = ear.heard
        assert told.usage == Usage(7, 4, 3)
        assert (told.upstream, told.asked["seed"], told.finish_reasons) == ("there", 3, ("stop",))
        assert told.tpot_s is not None
        assert told.tpot_s > 0

    asyncio.run(run())


def test_an_observer_that_fails_harms_nobody():
    class Broken:
        def finished(self, request: Finished) -> None:
            raise OSError("no disk")

    async def run() -> None:
        app = build_app(GatewaySettings(), {"own": ScriptedUpstream(says("a"))}, observer=Broken())
        assert (await call(app, "POST", CHAT, chat())).status == 200

    asyncio.run(run())
