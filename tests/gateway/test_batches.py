"""The batch API: whole answers, bad lines, restarts, cancels, and who comes first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import orjson
import pytest

from asgi import CHAT, Response, call, chat, connect, lifespan
from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.batches import BatchSettings
from decodeloop.gateway.semconv import span_attributes
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.telemetry import Finished
from decodeloop.types import Request, RequestRefused
from scripted import FOREVER, ScriptedUpstream, says

BOUNDARY = "xyz"


def app_with(upstream: ScriptedUpstream, folder: Path, **batches: Any) -> Gateway:
    settings = GatewaySettings(batches=BatchSettings(directory=str(folder), **batches))
    return build_app(settings, {"own": upstream})


def line(custom_id: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": chat(**body)}


def form(data: bytes, purpose: str = "batch") -> bytes:
    return (
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\n{purpose}\r\n'
        f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="file"; filename="in.jsonl"\r\n'
        "content-type: application/jsonl\r\n\r\n"
    ).encode() + data + f"\r\n--{BOUNDARY}--\r\n".encode()  # fmt: skip


async def upload(app: Gateway, rows: list[Any], purpose: str = "batch") -> Response:
    data = b"".join((row if isinstance(row, bytes) else orjson.dumps(row)) + b"\n" for row in rows)
    headers = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
    return await call(app, "POST", "/v1/files", form(data, purpose), headers)


async def begin(app: Gateway, rows: list[Any]) -> str:
    file = (await upload(app, rows)).json()["id"]
    got = await call(app, "POST", "/v1/batches", {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h"})
    assert got.status == 200, got.body
    id: str = got.json()["id"]
    return id


async def until(app: Gateway, id: str, *statuses: str) -> dict[str, Any]:
    while True:
        told: dict[str, Any] = (await call(app, "GET", f"/v1/batches/{id}")).json()
        if told["status"] in statuses:
            return told
        await asyncio.sleep(0.005)


async def rows_of(app: Gateway, file: str | None) -> dict[str, Any]:
    if file is None:
        return {}
    body = (await call(app, "GET", f"/v1/files/{file}/content")).body
    return {row["custom_id"]: row for row in map(orjson.loads, body.splitlines())}


def test_every_line_is_answered(tmp_path):
    def script(request: Request):
        if request.params.max_tokens == 3:
            return [RequestRefused("too odd", status=400)]
        return says("yes")(request)

    async def run() -> None:
        upstream = ScriptedUpstream(script)
        app = app_with(upstream, tmp_path)
        async with lifespan(app):
            rows = [line(str(place)) for place in range(20)]
            id = await begin(app, [*rows, line("odd", max_tokens=3), line("bad", temperature=99)])
            told = await until(app, id, "completed")
            assert told["request_counts"] == {"total": 22, "completed": 20, "failed": 2}
            good, bad = await rows_of(app, told["output_file_id"]), await rows_of(app, told["error_file_id"])
            assert set(good) == {str(place) for place in range(20)}
            assert good["7"]["response"]["body"]["choices"][0]["message"]["content"] == "yes"
            assert {bad[each]["response"]["status_code"] for each in ("odd", "bad")} == {400}
            assert all(request.priority == "batch" for request in upstream.requests)
            assert all(told[f"{name}_at"] for name in ("created", "in_progress", "finalizing", "completed"))

    asyncio.run(run())


@pytest.mark.parametrize(
    ("rows", "number", "message"),
    [
        ([line("a"), b"{"], 2, "not JSON"),
        ([line("a"), line("a")], 2, "twice"),
        ([{**line("a"), "url": "/v1/other"}], 1, "url"),
        ([{**line("a"), "method": "GET"}], 1, "method"),
        ([{**line("a"), "body": 3}], 1, "body"),
        ([line("a", stream=True)], 1, "stream"),
        ([{**line("a"), "custom_id": 3}], 1, "custom_id"),
        ([b""], 1, "empty"),
    ],
)
def test_a_bad_file_fails_with_its_lines_named(tmp_path, rows, number, message):
    async def run() -> None:
        upstream = ScriptedUpstream(says("x"))
        app = app_with(upstream, tmp_path)
        async with lifespan(app):
            told = await until(app, await begin(app, rows), "failed")
            (error,) = told["errors"]["data"]
            assert error["line"] == number
            assert message in error["message"]
            assert upstream.requests == []

    asyncio.run(run())


def test_a_restart_goes_on_where_it_was(tmp_path):
    asked: list[str] = []

    def script(request: Request):
        asked.append(str(request.params.max_tokens))
        return [FOREVER] if request.params.max_tokens == 5 and len(asked) <= 5 else says("x")(request)

    async def run() -> None:
        app = app_with(ScriptedUpstream(script), tmp_path, at_once=1)
        async with lifespan(app):
            id = await begin(app, [line(str(most), max_tokens=most) for most in range(1, 10)])
            while len(asked) < 5:
                await asyncio.sleep(0.005)
        state = next(tmp_path.glob("batches/batch_*.json")).read_bytes()
        assert b'"in_progress"' in state
        out = next(path for path in tmp_path.glob("*.data") if b'"response"' in path.read_bytes())
        out.write_bytes(out.read_bytes()[:-7])  # as a crash cuts it
        app = app_with(ScriptedUpstream(script), tmp_path)
        async with lifespan(app):
            told = await until(app, id, "completed")
            assert told["request_counts"] == {"total": 9, "completed": 9, "failed": 0}
            assert set(await rows_of(app, told["output_file_id"])) == {str(most) for most in range(1, 10)}
            assert asked.count("1") == 1, "answered lines aren't asked again"
            assert asked.count("4") == 2, "but the one that was cut off is"

    asyncio.run(run())


def test_cancelling_keeps_what_is_done(tmp_path):
    async def run() -> None:
        upstream = ScriptedUpstream(lambda request: [FOREVER] if request.params.max_tokens == 2 else says("x")(request))
        app = app_with(upstream, tmp_path, at_once=1)
        async with lifespan(app):
            id = await begin(app, [line("a", max_tokens=1), line("b", max_tokens=2), line("c")])
            while len(upstream.requests) < 2:
                await asyncio.sleep(0.005)
            assert (await call(app, "POST", f"/v1/batches/{id}/cancel")).json()["status"] == "cancelling"
            told = await until(app, id, "cancelled")
            assert set(await rows_of(app, told["output_file_id"])) == {"a"}
            assert upstream.open == 0

    asyncio.run(run())


def test_others_come_first(tmp_path):
    async def run() -> None:
        upstream = ScriptedUpstream(lambda request: [FOREVER] if request.priority != "batch" else says("x")(request))
        app = app_with(upstream, tmp_path, yield_above=1)
        async with lifespan(app):
            busy = [connect(app, "POST", CHAT, chat()) for _ in range(2)]
            while upstream.open < 2:
                await asyncio.sleep(0)
            id = await begin(app, [line("a")])
            await asyncio.sleep(0.2)
            assert all(request.priority != "batch" for request in upstream.requests)
            busy[0].disconnect()
            await until(app, id, "completed")
            busy[1].disconnect()

    asyncio.run(run())


def test_it_expires(tmp_path):
    async def run() -> None:
        app = app_with(ScriptedUpstream(lambda request: [FOREVER]), tmp_path, window_s=0.05)
        async with lifespan(app):
            await until(app, await begin(app, [line("a")]), "expired")

    asyncio.run(run())


def test_lines_that_find_no_room_are_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("decodeloop.gateway.batches.runner.PAUSE_S", (0.01, 0.01))

    async def run() -> None:
        left = [2]

        def script(request: Request):
            left[0] -= 1
            return says("x")(request) if left[0] < 0 else [RequestRefused("full", status=503)]

        app = app_with(ScriptedUpstream(script), tmp_path)
        async with lifespan(app):
            told = await until(app, await begin(app, [line("a")]), "completed")
            assert told["request_counts"]["completed"] == 1

    asyncio.run(run())


def test_files(tmp_path):
    async def run() -> None:
        app = app_with(ScriptedUpstream(says("x")), tmp_path, max_files=4)
        async with lifespan(app):
            stored = (await upload(app, [line("a")])).json()
            assert (stored["filename"], stored["purpose"], stored["object"]) == ("in.jsonl", "batch", "file")
            content = await call(app, "GET", f"/v1/files/{stored['id']}/content")
            assert orjson.loads(content.body) == line("a")
            assert [each["id"] for each in (await call(app, "GET", "/v1/files")).json()["data"]] == [stored["id"]]
            assert (await call(app, "DELETE", f"/v1/files/{stored['id']}")).json()["deleted"]
            for path in (f"/v1/files/{stored['id']}", "/v1/files/..%2fetc", "/v1/batches/batch_no"):
                assert (await call(app, "GET", path)).status == 404
            assert (await upload(app, [], purpose="fine-tune")).status == 400
            for _ in range(4):
                assert (await upload(app, [])).status == 200
            assert (await upload(app, [])).status == 429
            plain = {"content-type": "application/json"}
            assert (await call(app, "POST", "/v1/files", b"{}", plain)).status == 415
            broken = {"content-type": f"multipart/form-data; boundary={BOUNDARY}"}
            assert (await call(app, "POST", "/v1/files", b"nonsense", broken)).status == 400

    asyncio.run(run())


def test_pages_and_bad_asks(tmp_path):
    async def run() -> None:
        app = app_with(ScriptedUpstream(says("x")), tmp_path)
        async with lifespan(app):
            ids = [await begin(app, [line("a")]) for _ in range(3)]
            page = (await call(app, "GET", "/v1/batches")).json()
            assert {each["id"] for each in page["data"]} == set(ids)
            file = (await upload(app, [line("a")])).json()["id"]
            for wrong in (
                {"endpoint": "/v1/embeddings"},
                {"completion_window": "1h"},
                {"input_file_id": "file-no"},
                {"metadata": {str(place): "x" for place in range(17)}},
                {"colour": "red"},
            ):
                ask = {"input_file_id": file, "endpoint": CHAT, "completion_window": "24h", **wrong}
                assert (await call(app, "POST", "/v1/batches", ask)).status in (400, 404), wrong

    asyncio.run(run())


def test_without_a_directory_there_are_none():
    async def run() -> None:
        app = build_app(GatewaySettings(), {"own": ScriptedUpstream(says("x"))})
        assert (await call(app, "GET", "/v1/batches")).status == 404

    asyncio.run(run())


def test_observers_and_metrics_are_told_of_lines_too(tmp_path):
    class Listener:
        def __init__(self) -> None:
            self.heard: list[Finished] = []

        def finished(self, request: Finished) -> None:
            self.heard.append(request)

    async def run() -> None:
        ear = Listener()
        settings = GatewaySettings(batches=BatchSettings(directory=str(tmp_path)))
        app = build_app(settings, {"own": ScriptedUpstream(says("yes", "no"))}, observer=ear)
        async with lifespan(app):
            id = await begin(app, [line("a", decodeloop={"class": "sql"}), line("b", temperature=99)])
            await until(app, id, "completed")
            page = (await call(app, "GET", "/metrics")).body
        assert {each.batch for each in ear.heard} == {id}
        good, bad = sorted(ear.heard, key=lambda each: each.status)
        assert (good.status, good.error, good.usage is not None) == (200, None, True)
        assert (bad.status, bad.error is not None) == (400, True)
        assert span_attributes(good)["decodeloop.batch"] == id
        assert b'decodeloop_class_requests_total{class="sql",pool="default"} 1.0' in page

    asyncio.run(run())
