"""Answers given before: exact, per organization, bounded, and only when asked for."""

from __future__ import annotations

import asyncio
import re

import pytest

from asgi import CHAT, COMPLETIONS, JSON_HEADERS, call, chat, completion
from decodeloop.gateway.answers import AnswerCache
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import AnswerCacheSettings, GatewaySettings
from decodeloop.governance.capability import Place
from decodeloop.types import Chunk, FinishReason, RequestRefused, Usage
from elsewhere import DONE, END, USAGE_EVENT, Elsewhere, answers, event, gateway_before, piece, streams
from scripted import ScriptedUpstream, finish, says

USE = {**JSON_HEADERS, "x-decodeloop-cache": "use"}
SETTINGS = AnswerCacheSettings(max_mb=1)


def id_of(response) -> bytes:
    return re.search(rb'"id":"(\S+?)"', response.body)[1]


@pytest.mark.parametrize(
    ("parts", "stream", "said"),
    [
        ((b'{"id": "a", "x": {"id": "b"}}',), False, (b'{"id": "new", "x": {"id": "b"}}',)),
        ((b'{"choices":[{"id":"call"}],"id":"a"}',), False, (b'{"choices":[{"id":"call"}],"id":"new"}',)),
        ((b'data: {"id":"a"}\n\ndata: {"id":"a","t":"\\"id\\":\\"a\\""}\n\n', b"data: [DONE]\n\n"), True, None),
        ((b'{"object":"nameless"}',), False, (b'{"object":"nameless"}',)),
        ((b"no json",), False, (b"no json",)),
    ],
)
def test_only_the_answers_own_id_is_another(parts, stream, said):
    cache = AnswerCache(SETTINGS, lambda: 0.0)
    cache.put(b"k", parts, Usage(), Place(), is_stream=stream)
    if said is None:
        said = (b'data: {"id":"new"}\n\ndata: {"id":"new","t":"\\"id\\":\\"a\\""}\n\n', b"data: [DONE]\n\n")
    assert cache.get(b"k").said_as("new") == said


def app_with(upstream: ScriptedUpstream, cache: AnswerCacheSettings = SETTINGS):
    return build_app(GatewaySettings(answer_cache=cache), {"own": upstream})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sure", [{"temperature": 0}, {"seed": 3}])
def test_the_same_again_is_the_same_bytes(stream, sure):
    async def run() -> None:
        upstream = ScriptedUpstream(says("a", "b"))
        app = app_with(upstream)
        body = chat(stream=stream, **sure)
        first = await call(app, "POST", CHAT, body, USE)
        again = await call(app, "POST", CHAT, {**body, "user": "someone else"}, USE)
        assert first.body.replace(id_of(first), id_of(again)) == again.body
        assert id_of(first) != id_of(again)
        assert [each.headers["x-decodeloop-cache"] for each in (first, again)] == ["miss", "hit"]
        assert first.headers["content-type"] == again.headers["content-type"]
        assert len(upstream.requests) == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (chat(temperature=0), chat(temperature=0, max_tokens=5), CHAT),
        (chat(temperature=0), chat(temperature=0, stream=True), CHAT),
        (chat(seed=1), chat(seed=2), CHAT),
        (chat(seed=1), chat(seed=1, decodeloop={"speculation": "off"}), CHAT),
        (chat(), chat(), CHAT),
        (chat(seed=-1), chat(seed=-1), CHAT),
        (completion(temperature=0), completion(temperature=0, prompt="Ho"), COMPLETIONS),
    ],
)
def test_anything_else_is_asked_anew(first, second, path):
    async def run() -> None:
        upstream = ScriptedUpstream(says("a"))
        app = app_with(upstream)
        for body in (first, second):
            assert (await call(app, "POST", path, body, USE)).status == 200
        assert len(upstream.requests) == 2

    asyncio.run(run())


def test_only_who_asks_and_only_where_it_is_on():
    async def run() -> None:
        upstream = ScriptedUpstream(says("a"))
        app = app_with(upstream)
        body = chat(temperature=0)
        await call(app, "POST", CHAT, body)
        await call(app, "POST", CHAT, body)
        off = app_with(upstream, AnswerCacheSettings())
        await call(off, "POST", CHAT, body, USE)
        await call(off, "POST", CHAT, body, USE)
        assert len(upstream.requests) == 4
        assert (await call(app, "POST", CHAT, body, {**USE, "x-decodeloop-cache": "yes"})).status == 400

    asyncio.run(run())


@pytest.mark.parametrize(
    "script",
    [
        lambda request: [RequestRefused("broken", status=500)],
        lambda request: [Chunk(text="a", token_ids=(1,)), RequestRefused("broken", status=500)],
        lambda request: [finish(request, FinishReason.DEADLINE)],
        lambda request: [finish(request, FinishReason.ABORT)],
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_failures_and_accidents_are_not_kept(script, stream):
    async def run() -> None:
        upstream = ScriptedUpstream(script)
        app = app_with(upstream)
        for _ in range(2):
            await call(app, "POST", CHAT, chat(temperature=0, stream=stream), USE)
        assert len(upstream.requests) == 2

    asyncio.run(run())


def test_answers_from_elsewhere_too():
    async def run() -> None:
        server = Elsewhere(answers())
        async with gateway_before(server, answer_cache=SETTINGS) as app:
            bodies = [(await call(app, "POST", CHAT, chat(seed=1), USE)).body for _ in range(2)]
            server.play = streams(event(piece("a")), END, USAGE_EVENT, DONE)
            bodies += [(await call(app, "POST", CHAT, chat(seed=1, stream=True), USE)).body for _ in range(2)]
            for first, again in (bodies[:2], bodies[2:]):
                assert first != again, "it has an id of its own"
                assert re.sub(rb'"id": ?"c"', b"", first) == re.sub(rb'"id": ?"chatcmpl-\w+"', b"", again)
            assert len(server.bodies) == 2

    asyncio.run(run())


def test_organizations_share_nothing():
    cache = AnswerCache(SETTINGS, lambda: 0.0)
    assert cache.key("a", CHAT, chat()) != cache.key("b", CHAT, chat())
    assert cache.key("a", CHAT, {"x": 1, "y": 2}) == cache.key("a", CHAT, {"y": 2, "x": 1})


def test_it_is_bounded_and_forgets():
    now = [0.0]
    cache = AnswerCache(AnswerCacheSettings(max_mb=1, ttl_s=10.0), lambda: now[0])
    keys = [bytes([place]) for place in range(20)]
    for key in keys:
        cache.put(key, (b"x" * 90_000,), Usage(), Place(), is_stream=False)
        assert cache.bytes <= 1 << 20
        if cache.get(keys[0]) is None:
            break
    assert cache.get(keys[0]) is not None, "used, so kept"
    assert cache.get(keys[1]) is None
    cache.put(b"big", (b"x" * 200_000,), Usage(), Place(), is_stream=False)
    assert cache.get(b"big") is None
    now[0] = 11.0
    assert all(cache.get(key) is None for key in keys)
    assert cache.bytes >= 0
