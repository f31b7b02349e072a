"""What clients tell of answers: checked, bounded, and carried to the economics."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from asgi import Response, call
from decodeloop.cli.main import app as cli
from decodeloop.evaluation.economics_roi import outcomes, read_events
from decodeloop.gateway.client_events import KINDS
from decodeloop.gateway.openapi import describe
from governed import KEY, OTHER, Governed, governed, says_tokens, settings
from scripted import ScriptedUpstream

EVENTS = "/v1/events"


def run(tmp_path: Path, work: Any, text: str = "") -> None:
    async def whole() -> None:
        async with governed(settings(tmp_path, text), ScriptedUpstream(says_tokens(3))) as there:
            await work(there)

    asyncio.run(whole())


async def tell(there: Governed, body: Any, key: str | None = KEY) -> Response:
    return await call(there.app, "POST", EVENTS, body, there.headers(key))


async def answer(there: Governed, key: str = KEY, session: str = "s") -> str:
    got = await there.ask(key, headers={"x-session-id": session})
    await there.governance.store.flush()
    return str(got.json()["id"])


def test_from_answers_to_their_return(tmp_path: Path) -> None:
    async def work(there: Governed) -> None:
        assert (await tell(there, {"event": "task_started", "session_id": "s"})).status == 200
        ids = [await answer(there) for _ in range(4)]
        shown = [{"event": "suggestion_shown", "request_id": id} for id in ids]
        taken = [{"event": "suggestion_accepted", "request_id": id} for id in ids[:3]]
        got = await tell(there, {"events": [*shown, *taken]})
        assert got.json() == {"accepted": 7, "refused": []}
        await tell(there, {"events": taken})  # again
        there.clock.now_s += 90
        await tell(there, {"event": "task_completed", "session_id": "s"})

    run(tmp_path, work)
    config = tmp_path / "config.yaml"
    config.write_text(f"model: null\ngovernance: {{store: 'sqlite:{tmp_path}/books.sqlite3'}}\n")
    out = tmp_path / "events.jsonl"
    got = CliRunner().invoke(cli, ["ledger", "events", "--config", str(config), "--out", str(out)])
    assert got.exit_code == 0, got.output
    read = read_events(out.read_text().splitlines())
    assert not read.malformed
    (found,) = outcomes(read.events)
    assert (found.arm, found.shown, found.accepted, found.acceptance) == ("default", 4, 3, 0.75)
    assert (found.tasks, found.completed, found.completion_s_p50) == (1, 1, 90.0)


def test_only_of_answers_to_the_same_organization(tmp_path: Path) -> None:
    async def work(there: Governed) -> None:
        id = await answer(there)
        body = {"event": "suggestion_accepted", "request_id": id}
        for key, told in ((OTHER, {**body}), (KEY, {**body, "request_id": "chatcmpl-none"})):
            got = (await tell(there, told, key)).json()
            assert got["accepted"] == 0
            assert got["refused"][0]["index"] == 0
            assert "was answered to your organization" in got["refused"][0]["why"]
        assert (await tell(there, body, None)).status == 401
        assert list(await there.governance.events.read(0, 1e12)) == []

    run(tmp_path, work)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "event"),
        ({"event": "suggestion_loved", "request_id": "r"}, "event"),
        ({"event": "suggestion_shown"}, "request_id"),
        ({"event": "task_started", "request_id": "r"}, "session_id"),
        ({"event": "task_started", "session_id": "s", "at": "yesterday"}, "at"),
        ({"event": "task_started", "session_id": "s", "at": "2027-01-15T08:00:00"}, "at"),
        ({"event": "task_started", "session_id": "s", "at": "2020-01-15T08:00:00Z"}, "at"),
        ({"event": "task_started", "session_id": "s", "more": 1}, None),
        ({"event": "task_started", "session_id": "s" * 256}, "session_id"),
        ({"events": []}, "events"),
        ({"events": [{"event": "task_started"}]}, "events.0.session_id"),
        ({"event": "task_started", "session_id": "s", "events": [{"event": "x"}]}, "events"),
        ({"events": [{"event": "task_started", "session_id": "s"}] * 101}, "events"),
    ],
)
def test_what_makes_no_sense_is_refused_whole(tmp_path: Path, body: Any, param: str | None) -> None:
    async def work(there: Governed) -> None:
        got = await tell(there, body)
        assert got.status == 400, got.body
        if param is not None:
            assert got.json()["error"]["param"] == param
        assert list(await there.governance.events.read(0, 1e12)) == []

    run(tmp_path, work)


def test_so_many_a_minute_and_an_identity(tmp_path: Path) -> None:
    async def work(there: Governed) -> None:
        def told(place: int) -> dict[str, str]:
            return {"event": "task_started", "session_id": str(place)}

        assert [(await tell(there, told(place))).status for place in range(4)] == [200, 200, 200, 429]
        assert (await tell(there, told(0), OTHER)).status == 200
        there.clock.now_s += 60
        assert (await tell(there, told(9))).status == 200
        kept = await there.governance.events.read(0, 1e12)
        assert [each.session_id for each in kept] == ["2", "0", "9"], "the newest are kept"

    run(tmp_path, work, "events: {per_minute: 3, max_events: 3}")


def test_the_api_description_has_what_is_taken() -> None:
    page = describe()
    posted = page["paths"]["/v1/events"]["post"]
    assert posted["requestBody"]["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/EventBody"}
    schemas = page["components"]["schemas"]
    assert set(schemas["EventBody"]["properties"]) == {"event", "request_id", "session_id", "at", "arm", "events"}
    assert tuple(schemas["OneEvent"]["properties"]["event"]["enum"]) == KINDS
