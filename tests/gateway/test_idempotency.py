"""A request with an Idempotency-Key is run and billed once, and told again as often as it is sent."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from asgi import CHAT, call, chat, lifespan
from decodeloop.gateway.app import build_app
from decodeloop.gateway.governance import build_governance
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.store import Recalled
from decodeloop.gateway.upstreams.remote import RemoteSettings
from decodeloop.governance.ledger import Outcome
from decodeloop.types import Chunk, RequestRefused
from elsewhere import DONE, END, USAGE_EVENT, Elsewhere, event, piece, streams
from governed import KEY as SECRET
from governed import OTHER, Clock, Governed, governed, run, says_tokens, settings
from listening import listening
from scripted import ScriptedUpstream

KEY = {"idempotency-key": "order-1"}
SPECULATIVE = "/v1/chat/speculative-completions"
PROMPT = {"request_id": "r", "prompt": "Hi", "domain": "general_chat"}


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeat_is_told_the_same_and_billed_no_more(tmp_path: Path, stream: bool) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        first = await there.ask(headers=KEY, stream=stream)
        again = await there.ask(headers=KEY, stream=stream)
        assert (again.status, again.body) == (first.status, first.body)
        assert again.headers["content-type"] == first.headers["content-type"]
        assert again.headers["x-decodeloop-pool"] == first.headers["x-decodeloop-pool"]
        assert again.headers["x-request-id"] != first.headers["x-request-id"]
        assert [each.headers.get("idempotent-replayed") for each in (first, again)] == [None, "true"]
        if stream:
            assert again.events()[-1] == "[DONE]"
        assert len(upstream.requests) == len(await there.rows()) == 1

    run(settings(tmp_path), says_tokens(5), work)


def test_a_stream_is_told_again_event_by_event(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        for _ in range(2):
            connection = there.asking(headers=KEY, stream=True)
            await connection.response()
            assert len([each for each in connection.sent if each.get("body")]) >= 5

    run(settings(tmp_path), says_tokens(5), work)


def test_many_at_once_are_one(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = await asyncio.gather(*(there.ask(headers=KEY) for _ in range(8)))
        assert {each.status for each in got} == {200}
        assert len({each.body for each in got}) == 1
        assert len(upstream.requests) == len(await there.rows()) == 1

    run(settings(tmp_path), says_tokens(5, wait_s=0.01), work)


def test_who_can_not_wait_longer_may_come_back(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        first = there.asking(headers=KEY, stream=True)
        await first.wrote(b"data:")
        got = await there.ask(headers=KEY, stream=True)
        assert (got.status, got.json()["error"]["code"]) == (409, "idempotency_key_in_flight")
        assert got.headers["retry-after"] == "1"
        first.disconnect()
        await first.task

    made = settings(tmp_path, "idempotency: {wait_s: 0}")
    run(made, says_tokens(5, wait_s=0.01), work)


@pytest.mark.parametrize("body", [{"max_tokens": 3}, {"stream": True}])
def test_another_body_is_refused(tmp_path: Path, body: dict[str, Any]) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        await there.ask(headers=KEY)
        got = await there.ask(headers=KEY, **body)
        assert (got.status, got.json()["error"]["code"]) == (400, "idempotency_key_reused")
        assert (await there.ask(OTHER, headers=KEY, **body)).status == 200, "it is another organization's"
        assert (await there.ask(None, headers=KEY)).status == 401

    run(settings(tmp_path), says_tokens(5), work)


def test_it_is_answered_to_its_end_though_the_client_left(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        first = there.asking(headers=KEY, stream=True)
        await first.wrote(b'"x"')
        first.disconnect()
        again = await there.ask(headers=KEY, stream=True)
        assert again.events()[-1] == "[DONE]"
        texts = [each["choices"][0]["delta"].get("content") for each in again.events()[:-1]]
        assert texts.count("x") == 20
        (row,) = await there.rows()
        assert (row.outcome, row.usage.completion) == (Outcome.COMPLETED, 20)
        await first.task

    run(settings(tmp_path), says_tokens(20, wait_s=0.01), work)


def test_a_failure_that_cost_nothing_is_tried_again_and_one_that_was_billed_told_again(tmp_path: Path) -> None:
    fails = [RequestRefused("broken", status=500)]

    def script(request: Any) -> Any:
        yield from fails or says_tokens(3)(request)

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        assert (await there.ask(headers=KEY)).status == 500
        fails.clear()
        assert (await there.ask(headers=KEY)).status == 200
        fails[:] = [Chunk(text="a", token_ids=(1,)), RequestRefused("broken", status=500)]
        name = {"idempotency-key": "order-2"}
        first, again = await there.ask(headers=name), await there.ask(headers=name)
        assert (first.status, again.status) == (500, 500)
        assert first.body == again.body
        assert len(await there.rows()) == 3

    run(settings(tmp_path), script, work)


def test_a_repeat_needs_no_budget(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        first = await there.ask(headers=KEY, max_tokens=5)
        assert (await there.ask(max_tokens=5)).status == 429
        assert (await there.ask(headers=KEY, max_tokens=5)).body == first.body

    once = "limits: [{id: one, scope: {organization: acme}, unit: requests, amount: 1, window: total}]"
    run(settings(tmp_path, once), says_tokens(5), work)


@pytest.mark.parametrize("kept", [{"max_answer_kb": 0}, {"max_mb": 0}])
def test_what_is_not_kept_is_not_run_again(tmp_path: Path, kept: dict[str, int]) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        await there.ask(headers=KEY)
        await there.governance.store.flush()
        there.clock.now_s += 10
        got = await there.ask(headers=KEY)
        assert (got.status, got.json()["error"]["code"]) == (409, "idempotency_key_used")
        assert got.headers["x-should-retry"] == "false"
        assert len(upstream.requests) == 1

    named = ", ".join(f"{name}: {value}" for name, value in kept.items())
    run(settings(tmp_path, f"idempotency: {{{named}}}"), says_tokens(5), work)


def test_figures_are_told_again_unchanged(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        asked = ("POST", SPECULATIVE, PROMPT, there.headers(SECRET, KEY))
        first, again = await call(there.app, *asked), await call(there.app, *asked)
        assert first.status == 200, first.body
        assert first.body == again.body
        assert len(upstream.requests) == 1

    run(settings(tmp_path), says_tokens(5), work)


def test_another_gateway_tells_it_too(tmp_path: Path) -> None:
    async def whole() -> None:
        made, upstreams = settings(tmp_path), [ScriptedUpstream(says_tokens(5)) for _ in range(2)]
        async with governed(made, upstreams[0]) as one, governed(made, upstreams[1]) as two:
            first = await one.ask(headers=KEY, stream=True)
            again = await two.ask(headers=KEY, stream=True)
            assert first.body == again.body
            assert not upstreams[1].requests

    asyncio.run(whole())


def test_another_engines_answer_is_told_again(tmp_path: Path) -> None:
    async def whole() -> None:
        server = Elsewhere(streams(event(piece("a")), event(piece("b")), END, USAGE_EVENT, DONE))
        async with server.serving() as url:
            governance = build_governance(settings(tmp_path), clock=Clock())
            remote = {"there": RemoteSettings(url=url, poll_s=60.0)}
            app = build_app(GatewaySettings(upstreams=remote), {}, governance=governance)
            async with lifespan(app):
                headers = Governed.headers(SECRET, KEY)
                got = [await call(app, "POST", CHAT, chat(stream=True), headers) for _ in range(2)]
        assert got[0].body == got[1].body
        assert b'"b"' in got[1].body
        assert len(server.bodies) == 1

    asyncio.run(whole())


def test_the_audit_names_who_was_told_again(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        for _ in range(2):
            await there.ask(headers=KEY)

    run(settings(tmp_path, f"audit: {{directory: {tmp_path}/audit}}"), says_tokens(5), work)
    (chain,) = (tmp_path / "audit").glob("*.jsonl")
    assert '"decision":"told again"' in chain.read_text()


def test_over_real_sockets_it_is_answered_to_its_end_though_the_client_left(tmp_path: Path) -> None:
    governance = build_governance(settings(tmp_path), clock=Clock())
    app = build_app(GatewaySettings(), {"own": ScriptedUpstream(says_tokens(20, wait_s=0.005))}, governance=governance)
    headers = Governed.headers(SECRET, KEY)

    with listening(app, GatewaySettings()) as (_, port), httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
        with client.stream("POST", CHAT, json=chat(stream=True), headers=headers) as left:
            next(left.iter_bytes())
        again = client.post(CHAT, json=chat(stream=True), headers=headers)
        once_more = client.post(CHAT, json=chat(stream=True), headers=headers)
        assert again.headers["idempotent-replayed"] == "true"
        assert again.content.count(b'"content":"x"') == 20
        assert again.content.endswith(b"data: [DONE]\n\n")
        assert once_more.content == again.content


def test_another_may_come_first_and_end_between_two_looks(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        first = await there.ask(headers=KEY)
        await there.governance.store.flush()
        clerk, looked = there.governance.clerk, []
        look = clerk.recall

        async def late(named: Any) -> Recalled:
            looked.append(named)
            return Recalled() if len(looked) == 1 else await look(named)

        clerk.recall = late  # type: ignore[method-assign]
        again = await there.ask(headers=KEY)
        assert (again.status, again.body) == (200, first.body)
        assert len(upstream.requests) == 1

    run(settings(tmp_path), says_tokens(5), work)


@pytest.mark.parametrize("stream", [False, True])
def test_what_a_dead_gateway_took_with_it_is_run_again_and_billed_once(tmp_path: Path, stream: bool) -> None:
    """Killed in mid-answer: for its lease the key is in use, then it is another gateway's."""
    made = settings(tmp_path, "idempotency: {wait_s: 0.0}\nlease_s: 15\naudit: {directory: " + f"{tmp_path}/audit}}")

    async def run_both() -> None:
        stuck = ScriptedUpstream(says_tokens(3, wait_s=30.0))
        async with governed(made, stuck) as dead, governed(made, ScriptedUpstream(says_tokens(5))) as alive:
            asked = asyncio.create_task(dead.ask(headers=KEY, stream=stream))
            while not stuck.requests:
                await asyncio.sleep(0.01)
            dead.governance.store._beat.cancel()  # no more is heard of it
            busy = await alive.ask(headers=KEY, stream=stream)
            assert (busy.status, busy.json()["error"]["code"]) == (409, "idempotency_key_in_flight")
            alive.clock.now_s += 60.0
            await alive.governance.store._beat_once()
            told = await alive.ask(headers=KEY, stream=stream)
            assert (told.status, told.headers["retry-after"]) == (409, "1"), "it is being taken back"
            await alive.governance.store.flush()
            got = [await alive.ask(headers=KEY, stream=stream) for _ in range(2)]
            assert [each.status for each in got] == [200, 200]
            assert got[0].body == got[1].body
            assert got[1].headers["idempotent-replayed"] == "true"
            asked.cancel()
            await asyncio.wait([asked])
            rows = {row.outcome: row for row in await alive.rows()}
            assert set(rows) == {Outcome.ESTIMATED, Outcome.CORRECTION, Outcome.COMPLETED}
            assert sum(row.usage.prompt + row.usage.completion for row in rows.values()) == 12
            assert sum(row.billed for row in rows.values()) == rows[Outcome.COMPLETED].billed

    asyncio.run(run_both())
