"""A client that leaves takes its request with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, call, chat, completion, connect, gateway, settled
from decodeloop.types import Chunk, Request, RequestRefused
from scripted import FOREVER, ScriptedUpstream, Step, says


def stuck_after(*steps: Step) -> ScriptedUpstream:
    def script(request: Request) -> Iterable[Step]:
        yield from steps
        yield FOREVER

    return ScriptedUpstream(script)


async def until_asked(upstream: ScriptedUpstream, requests: int = 1) -> None:
    while upstream.open < requests:
        await asyncio.sleep(0)


def gauge(metrics: bytes, name: str) -> float:
    return next(float(line.split()[-1]) for line in metrics.decode().splitlines() if line.startswith(name))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("steps", [(), (Chunk(text="a"),)])
@pytest.mark.parametrize(("path", "make"), [(CHAT, chat), (COMPLETIONS, completion)])
def test_the_upstream_is_closed(path: str, make: Callable[..., Any], steps: tuple[Step, ...], stream: bool) -> None:
    async def run() -> None:
        upstream = stuck_after(*steps)
        app = gateway(upstream)
        connection = connect(app, "POST", path, make(stream=stream))
        await until_asked(upstream)
        if steps and stream:
            await connection.wrote(b"a")
        connection.disconnect()
        await connection.task
        assert upstream.ends == {"cancelled": 1}
        assert upstream.open == 0
        metrics = (await call(app, "GET", "/metrics")).body
        assert gauge(metrics, "decodeloop_requests_in_flight ") == 0
        assert b'finished_reason="cancelled"' in metrics
        if not stream:
            assert connection.sent == []

    asyncio.run(run())


def test_all_prompts_of_a_request_are_closed() -> None:
    async def run() -> None:
        upstream = stuck_after(Chunk(text="a"))
        connection = connect(gateway(upstream), "POST", COMPLETIONS, completion(prompt=["a", "b", "c"], stream=True))
        await until_asked(upstream, 3)
        connection.disconnect()
        await connection.task
        assert upstream.open == 0
        assert sum(upstream.ends.values()) == 3

    asyncio.run(run())


def test_a_client_that_leaves_during_its_body() -> None:
    async def run() -> None:
        upstream = stuck_after()
        connection = connect(gateway(upstream), "POST", CHAT)
        connection.incoming.get_nowait()
        connection.incoming.put_nowait({"type": "http.request", "body": b'{"mo', "more_body": True})
        connection.disconnect()
        await connection.task
        assert upstream.requests == []
        assert connection.sent == []

    asyncio.run(run())


def test_a_client_that_leaves_without_reading() -> None:
    """The write that waits for it is given up, too."""

    async def run() -> None:
        upstream = ScriptedUpstream(says(*map(str, range(100))))
        connection = connect(gateway(upstream), "POST", CHAT, chat(stream=True))
        connection.writable.clear()
        await until_asked(upstream)
        connection.disconnect()
        await connection.task
        assert upstream.open == 0

    asyncio.run(run())


def test_a_cancelled_server_task_closes_the_upstream_and_says_so() -> None:
    """What uvicorn does to requests that outlive its patience at shutdown."""

    async def run() -> None:
        upstream = stuck_after(Chunk(text="a"))
        app = gateway(upstream)
        streaming = connect(app, "POST", CHAT, chat(stream=True))
        whole = connect(app, "POST", CHAT, chat())
        await streaming.wrote(b'"a"')
        await until_asked(upstream, 2)
        for connection in (streaming, whole):
            connection.task.cancel()
        assert "error" in (await streaming.response()).events()[-1]
        assert (await whole.response()).status == 503
        assert upstream.open == 0

    asyncio.run(run())


def test_in_flight_returns_to_zero_whatever_happens() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="x")
        yield {0: RequestRefused("no", status=502), 1: ValueError("bug")}.get(request.seed, FOREVER)

    async def run() -> None:
        upstream = ScriptedUpstream(script)
        app = gateway(upstream)
        leaving = []
        for _ in range(10):
            for stream in (False, True):
                await call(app, "POST", CHAT, chat(stream=stream, seed=0))
                await call(app, "POST", COMPLETIONS, completion(stream=stream, seed=1))
                await call(app, "POST", COMPLETIONS, b"{")
                leaving.append(connect(app, "POST", CHAT, chat(stream=stream, seed=2)))
        await until_asked(upstream, 20)
        assert gauge((await call(app, "GET", "/metrics")).body, "decodeloop_requests_in_flight ") == 20
        for connection in leaving:
            connection.disconnect()
        await asyncio.gather(*[connection.task for connection in leaving])
        await settled(upstream)
        assert gauge((await call(app, "GET", "/metrics")).body, "decodeloop_requests_in_flight ") == 0

    asyncio.run(run())
