"""POST /v1/chat/speculative-completions."""

from __future__ import annotations

import asyncio

import pytest

from asgi import ask, call, connect
from decodeloop.types import RequestClass, RequestRefused, SpeculationMode
from elsewhere import USAGE, Elsewhere, answers, gateway_before
from scripted import FOREVER, ScriptedUpstream, plain_report, says

PATH = "/v1/chat/speculative-completions"
BODY = {"request_id": "r7", "prompt": "Sort it.", "domain": "code_synthesis", "max_tokens": 64, "temperature": 0.2}


def test_the_figures_are_the_engines():
    upstream = ScriptedUpstream(says("so", "rt"))
    got = ask(upstream, PATH, BODY)
    told = got.json()
    assert got.status == 200
    assert told.pop("total_latency_ms") > 0
    assert told.pop("time_per_token_ms") > 0
    assert told == {
        "request_id": "r7",
        "execution_mode": "speculative_accelerated",
        "routing_reason": "pool default: only; fixed in 2 steps; no_proposal in 1 steps",
        "total_tokens": 2,
        "tokens_proposed": 9,
        "tokens_accepted": 5,
        "step_acceptance_rate": 5 / 8,
        "active_concurrency": 1,
        "completion": "sort",
    }
    (asked,) = upstream.requests
    assert asked.request_class is RequestClass.CODE_SYNTHESIS
    assert asked.speculation.mode is SpeculationMode.AUTO
    assert (asked.params.max_tokens, asked.params.temperature) == (64, 0.2)


def test_an_override_reaches_the_engine_and_plain_answers_are_called_plain():
    upstream = ScriptedUpstream(says("x"))
    ask(upstream, PATH, {**BODY, "force_speculative": True})
    assert upstream.requests[0].speculation.mode is SpeculationMode.FORCE
    upstream.script = lambda request: [
        chunk if chunk.report is None else _plain(chunk, request) for chunk in says("x")(request)
    ]
    told = ask(upstream, PATH, BODY).json()
    assert told["execution_mode"] == "standard_autoregressive"
    assert (told["tokens_proposed"], told["step_acceptance_rate"]) == (0, 0.0)


def _plain(chunk, request):
    from dataclasses import replace

    return replace(chunk, report=plain_report(request))


def test_another_engines_figures():
    told = {
        "choices": [{"index": 0, "message": {"content": "yes"}, "finish_reason": "stop"}],
        "usage": USAGE,
        "timings": {"draft_n": 8, "draft_n_accepted": 6},
    }

    async def run() -> None:
        async with gateway_before(Elsewhere(answers(told))) as app:
            got = (await call(app, "POST", PATH, BODY)).json()
            assert (got["tokens_proposed"], got["tokens_accepted"], got["step_acceptance_rate"]) == (8, 6, 0.75)
            assert got["completion"] == "yes"

    asyncio.run(run())


@pytest.mark.parametrize(
    "wrong",
    [
        {"request_id": ""},
        {"request_id": None},
        {"prompt": ""},
        {"domain": "poetry"},
        {"domain": "sql"},
        {"max_tokens": 0},
        {"max_tokens": 4097},
        {"temperature": 2.1},
        {"force_speculative": "yes"},
        {"stream": True},
    ],
)
def test_bad_bodies_are_named(wrong):
    upstream = ScriptedUpstream(says("x"))
    got = ask(upstream, PATH, {**BODY, **wrong})
    assert got.status == 400
    assert next(iter(wrong)) in got.json()["error"]["message"]
    assert upstream.requests == []


def test_failures_and_keys_are_those_of_chat():
    upstream = ScriptedUpstream(lambda request: [RequestRefused("broken", status=500)])
    assert ask(upstream, PATH, BODY).status == 500
    assert ask(upstream, PATH, BODY, api_keys=("k",)).status == 401


def test_a_client_that_leaves_ends_it():
    from decodeloop.gateway.app import build_app
    from decodeloop.gateway.settings import GatewaySettings

    async def run() -> None:
        upstream = ScriptedUpstream(lambda request: [FOREVER])
        app = build_app(GatewaySettings(), {"own": upstream})
        connection = connect(app, "POST", PATH, BODY)
        while not upstream.open:
            await asyncio.sleep(0)
        connection.disconnect()
        await connection.task
        assert upstream.ends == {"cancelled": 1}

    asyncio.run(run())
