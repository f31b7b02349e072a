"""Budgets on the real gateway: never overspent, whatever clients and engines do; billed once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, JSON_HEADERS, call, completion, settled
from decodeloop.gateway.settings import Limits
from decodeloop.governance.ledger import Outcome
from decodeloop.types import Chunk, Request, RequestRefused, Usage
from governed import KEY, OTHER, Governed, governed, run, says_tokens, settings
from scripted import FOREVER, ScriptedUpstream, Step

TOTAL = "limits: [{id: cap, scope: {organization: acme}, unit: tokens, amount: %d, window: total}]"
RATE = "limits: [{id: rate, unit: tokens, amount: 1000, window: minute}]"


async def used(there: Governed, counter: str = "cap|acme///") -> int:
    await there.governance.store.flush()
    return (await there.governance.store.used([(counter, 0)]))[0]


def test_eight_first_requests_against_a_budget_for_one(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = await asyncio.gather(*[there.ask(max_tokens=20) for _ in range(8)])
        assert sorted(each.status for each in got) == [200, *[429] * 7]
        refused = next(each for each in got if each.status == 429)
        assert refused.json()["error"]["code"] == "insufficient_quota"
        assert refused.headers["x-should-retry"] == "false"
        assert "retry-after" not in refused.headers
        (row,) = await there.rows()
        assert (row.usage, row.outcome) == (Usage(7, 0, 20, 0, 0, 0), Outcome.COMPLETED)
        assert await used(there) == 27

    run(settings(tmp_path, TOTAL % 100), says_tokens(20, wait_s=0.001), work)


def test_a_key_at_60_percent_under_load_while_counters_are_rebuilt(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        assert (await there.ask(max_tokens=5993)).status == 200

        async def client() -> None:
            for _ in range(4):
                assert (await there.ask(max_tokens=8)).status == 200

        async def rebuilding() -> None:
            while not done.is_set():
                await there.governance.store.rebuild()
                counter, ledger, held = await there.governance.store._do(_sums)
                assert counter == ledger + held
                await asyncio.sleep(0)

        done = asyncio.Event()
        watcher = asyncio.create_task(rebuilding())
        await asyncio.gather(*[client() for _ in range(16)])
        done.set()
        await watcher
        assert await used(there) == 6000 + 64 * 15

    run(settings(tmp_path, TOTAL % 10_000), says_tokens(6000), work)


def _sums(connection: Any) -> tuple[int, int, int]:
    return connection.execute(
        """SELECT (SELECT coalesce(sum(used), 0) FROM counters),
                  (SELECT coalesce(sum(prompt_tokens + completion_tokens), 0) FROM ledger),
                  (SELECT coalesce(sum(json_extract(holds, '$[0][4]')), 0) FROM reservations)"""
    ).fetchone()


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("before", [30, 0])
def test_a_client_that_leaves_is_charged_what_it_got(tmp_path: Path, before: int, stream: bool) -> None:
    def script(request: Request) -> Iterable[Step]:
        if before:
            yield Chunk(usage=Usage(7, 0, 0))
        for place in range(before):
            yield Chunk(text=f"[{place}]", token_ids=(place,))
        yield FOREVER

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        connection = there.asking(max_tokens=100, stream=stream)
        while not upstream.open or upstream.yielded < before:
            await asyncio.sleep(0)
        if before and stream:
            await connection.wrote(b"[29]")
        connection.disconnect()
        await connection.task
        assert upstream.open == 0
        (row,) = await there.rows()
        assert row.outcome is Outcome.CANCELLED
        assert row.usage.completion == before
        assert 0 < row.usage.prompt <= 11, "the engine's count, or else a guess: it may have been computed"
        assert await used(there) == row.usage.prompt + before
        assert await there.governance.store.open() == []

    run(settings(tmp_path, TOTAL % 1000), script, work)


def test_ten_rounds_of_every_end_leave_nothing_held(tmp_path: Path) -> None:
    def script(request: Request) -> Iterable[Step]:
        if request.seed == 1:
            yield RequestRefused("the engine is gone", status=502)
        yield Chunk(text="x", token_ids=(0,))
        yield {2: FOREVER, 3: RuntimeError("bug"), 4: 0.3}.get(request.seed, 0.0)
        yield from list(says_tokens(3)(request))[1:]

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        headers = {**JSON_HEADERS, "authorization": f"Bearer {KEY}"}
        for path, make in ((CHAT, None), (COMPLETIONS, completion)):
            for _ in range(10):
                for stream in (False, True):
                    for seed in (0, 1, 3, 4):
                        await there.ask(path=path, **_body(make, stream, seed))
                    await call(there.app, "POST", path, b"{", headers)
                for stream in (False, True):
                    leaving = there.asking(path=path, **_body(make, stream, 2))
                    while not upstream.open and not leaving.task.done():  # on a slow machine it is a timeout, too
                        await asyncio.sleep(0)
                    leaving.disconnect()
                    await leaving.task
        await settled(upstream)
        metrics = (await call(there.app, "GET", "/metrics")).body.decode()
        assert "decodeloop_requests_in_flight 0.0" in metrics
        await there.governance.store.flush()
        assert await there.governance.store.open() == []
        rows = await there.rows()
        assert len(rows) == 2 * 10 * 2 * 5
        assert await used(there) == sum(row.usage.prompt + row.usage.completion for row in rows)
        failed = [row for row in rows if row.outcome is Outcome.FAILED and not row.billed]
        assert len(failed) >= 40, "what failed before its first word costs nothing"

    run(settings(tmp_path, TOTAL % 10**9), script, work, limits=Limits(request_timeout_s=0.04))


def _body(make: Any, stream: bool, seed: int) -> dict[str, Any]:
    body: dict[str, Any] = {"stream": stream, "seed": seed, "max_tokens": 8}
    return body if make is None else {**body, "messages": None, "prompt": "Hi"}


def test_three_workers_of_a_thousand_tokens_a_minute(tmp_path: Path) -> None:
    """Three gateways on one store, requests of 100 tokens: at most ten are admitted, whoever gets them."""

    async def work() -> None:
        made = settings(tmp_path, RATE + "\ntemplate_tokens: 0")
        script = says_tokens(93)
        async with (
            governed(made, ScriptedUpstream(script)) as one,
            governed(made, ScriptedUpstream(script)) as two,
            governed(made, ScriptedUpstream(script)) as three,
        ):
            got = await asyncio.gather(*[each.ask(max_tokens=93) for _ in range(8) for each in (one, two, three)])
            for _ in range(6):
                got += [await each.ask(max_tokens=93) for each in (one, two, three)]
            admitted = [each for each in got if each.status == 200]
            assert 1 <= len(admitted) <= 10
            refused = next(each for each in got if each.status == 429)
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert 0 < int(refused.headers["retry-after-ms"]) <= 5000
            assert admitted[0].headers["x-ratelimit-limit-tokens"] == "1000"
            assert refused.json()["error"]["message"].startswith("limit 'rate' (1000 tokens a minute) has ")
            assert sum(row.usage.prompt + row.usage.completion for row in await one.rows()) <= 1000
            for each in (one, two, three):
                each.clock.now_s += 66
            assert (await two.ask(max_tokens=93)).status == 200, "a minute later there is room again"

    asyncio.run(work())


def test_an_answer_without_max_tokens_does_not_block_the_budget(tmp_path: Path) -> None:
    """Two open-ended answers fit beside each other, and end for length where the budget does."""

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = await asyncio.gather(there.ask(), there.ask())
        assert [each.status for each in got] == [200, 200]
        reasons = [each.json()["choices"][0]["finish_reason"] for each in got]
        assert "length" in reasons
        total = await used(there)
        assert 1000 < total <= 2000
        rows = await there.rows()
        assert sum(row.usage.prompt + row.usage.completion for row in rows) == total
        told = [each.json()["usage"]["completion_tokens"] for each in got]
        assert sorted(told) == sorted(row.usage.completion for row in rows)

    run(settings(tmp_path, TOTAL % 2000 + "\nanswer_tokens: 128"), says_tokens(5000), work)


def test_a_stream_that_runs_out_ends_well(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = await there.ask(stream=True, stream_options={"include_usage": True})
        events = got.events()
        assert events[-1] == "[DONE]"
        assert events[-2]["usage"]["completion_tokens"] == (await there.rows())[0].usage.completion
        assert events[-3]["choices"][0]["finish_reason"] == "length"
        assert upstream.open == 0

    run(settings(tmp_path, TOTAL % 500 + "\nanswer_tokens: 128"), says_tokens(5000), work)


def test_organizations_have_budgets_of_their_own(tmp_path: Path) -> None:
    each = "limits: [{id: each, scope: {organization: '*'}, unit: requests, amount: 1, window: day}]"

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        assert [(await there.ask(key)).status for key in (KEY, KEY, OTHER)] == [200, 429, 200]

    run(settings(tmp_path, each), says_tokens(1), work)


def test_money_is_held_and_charged(tmp_path: Path) -> None:
    money = "limits: [{id: cap, unit: money, amount: 0.0005, window: month}]"

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = [(await there.ask(max_tokens=50)).status for _ in range(4)]
        assert got == [200, 200, 429, 429], "two answers of 207 millionths; a third might cost more than is left"
        first, _ = await there.rows()
        assert first.billed == 7_000 + 50 * 4_000
        assert first.cost == round((2.0 + 0.5 + 8.0 + 0.25 + 0.125) * 1e-3 * 0.001 * 1e9)
        assert first.margin == first.billed - first.cost
        assert (first.identity.organization, first.identity.agent, first.pool) == ("acme", "coder", "default")
        assert first.regime

    run(settings(tmp_path, money), says_tokens(50), work)


def test_an_idempotency_key_is_billed_once(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        name = {"idempotency-key": "order-1"}
        both = await asyncio.gather(there.ask(headers=name), there.ask(headers=name))
        assert [each.status for each in both] == [200, 200]
        assert both[0].body == both[1].body
        assert (await there.ask(headers=name, max_tokens=3)).status == 400
        assert (await there.ask(OTHER, headers=name)).status == 200, "it is another's"
        assert len(await there.rows()) == 2

    run(settings(tmp_path), says_tokens(5, wait_s=0.001), work)


def test_without_a_store_that_can_be_written_budgets_are_not_spent(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        async def break_store(how: str) -> None:
            await there.governance.store._do(lambda connection: connection.execute(how))

        await break_store("ALTER TABLE reservations RENAME TO elsewhere")
        got = await there.ask()
        assert (got.status, got.json()["error"]["code"]) == (503, "books_unavailable")
        assert (await there.ask(OTHER)).status == 200, "who has no limits is served, and the loss is counted"
        assert there.governance.clerk.unrecorded == 1
        await break_store("ALTER TABLE elsewhere RENAME TO reservations")
        assert (await there.ask()).status == 200
        await there.governance.store._beat_once()
        assert {row.identity.organization for row in await there.rows()} == {"acme", "other"}, "nothing was lost"

    run(settings(tmp_path, TOTAL % 10_000), says_tokens(5), work)
