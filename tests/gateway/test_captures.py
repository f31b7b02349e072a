"""Requests that are written down: by grant and consent alone, redacted, and read back as a workload."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from asgi import CHAT, call, chat, lifespan
from decodeloop.cli.serve import _redaction
from decodeloop.evaluation.workloads.captures import read_capture
from decodeloop.gateway.app import build_app
from decodeloop.gateway.governance import build_governance
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.store.lines_file import LinesFile
from decodeloop.gateway.upstreams.remote import RemoteSettings
from decodeloop.governance.settings import CaptureSettings
from decodeloop.types import Chunk, RequestClass, RequestRefused
from elsewhere import DONE, END, USAGE_EVENT, Elsewhere, answers, event, piece, streams
from governed import KEY, OTHER, Clock, Governed, governed, says_tokens, settings
from scripted import ScriptedUpstream

CONSENT = {"x-decodeloop-capture": "consent", "x-session-id": "s-1"}
GRANTS = """
grants:
  - {id: captured, scope: {organization: acme}, capture_content: true}
  - {id: others, scope: {organization: other}}
"""


def captured(tmp_path: Path, work: Any, *, script: Any = None, **more: Any) -> list[str]:
    """The lines that are there at the end."""

    options = ", ".join(f"{name}: {json.dumps(value)}" for name, value in more.items())
    made = settings(tmp_path, f"{GRANTS}captures: {{directory: {tmp_path}/captures, {options}}}")

    async def run() -> None:
        upstream = ScriptedUpstream(script or says_tokens(3))
        async with governed(made, upstream, redact=_redaction(made.captures)) as there:
            await work(there)

    asyncio.run(run())
    return [line for path in sorted((tmp_path / "captures").glob("*.jsonl")) for line in path.read_text().splitlines()]


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def test_what_is_written_is_a_workload(tmp_path: Path) -> None:
    async def work(there: Governed) -> None:
        for place, kind in enumerate(("sql", "code_edit")):
            there.clock.now_s += 2.0 * place
            wish = {"class": kind}
            await there.ask(headers=CONSENT, temperature=0.5, messages=messages(f"do {kind}"), decodeloop=wish)

    lines = captured(tmp_path, work)
    imported = read_capture(lines, "mine")
    assert (imported.faults, dict(imported.left_out)) == ((), {})
    first, second = imported.workload.requests
    assert (first.request_class, second.request_class) == (RequestClass.SQL, RequestClass.CODE_EDIT)
    assert first.messages == tuple(messages("do sql"))
    assert first.params == {"temperature": 0.5}
    assert (first.prompt_tokens, first.output_tokens, first.session) == (7, 3, "s-1")
    assert (first.arrival_s, second.arrival_s) == (0.0, 2.0)
    assert json.loads(lines[0])["answers"] == ["xxx"]


def test_neither_without_consent_nor_without_grant_nor_what_failed(tmp_path: Path) -> None:
    def script(request: Any) -> Any:
        if request.seed == 13:
            yield Chunk(text="a", token_ids=(1,))
            yield RequestRefused("broken", status=500)
        yield from says_tokens(3)(request)

    async def work(there: Governed) -> None:
        await there.ask()
        await there.ask(OTHER, headers=CONSENT)
        await there.ask(headers=CONSENT, seed=13)
        assert (await there.ask(headers={"x-decodeloop-capture": "yes"})).status == 400

    assert captured(tmp_path, work, script=script) == []


def test_personal_data_is_taken_out(tmp_path: Path) -> None:
    text = "mail ana@example.org, badge EMP-4711, twice: ana@example.org"

    async def work(there: Governed) -> None:
        headers = {**CONSENT, "x-session-id": "bob@example.org"}
        await there.ask(headers=headers, messages=messages(text), user="eve@example.org")

    (line,) = captured(tmp_path, work, patterns={"badge": r"EMP-\d+"})
    assert "@example.org" not in line
    assert "EMP-4711" not in line
    row = json.loads(line)
    words = row["body"]["messages"][0]["content"].split()
    assert words[1].rstrip(",") == words[-1], "what repeats still does"
    assert row["session"].startswith("<email-")


def test_as_it_is_where_that_is_said(tmp_path: Path) -> None:
    async def work(there: Governed) -> None:
        await there.ask(headers=CONSENT, messages=messages("ana@example.org"))

    (line,) = captured(tmp_path, work, redact=False)
    assert "ana@example.org" in line


def test_files_are_bounded_and_their_owners_alone(tmp_path: Path) -> None:
    file = LinesFile(tmp_path / "d", "captures", "x", most_bytes=100, most_files=3, render=lambda value: value)
    file.start()
    for place in range(40):
        file.write({"place": place, "text": "x" * 20})
    file.write(object())  # no JSON
    file.close()
    paths = sorted((tmp_path / "d").glob("*.jsonl"))
    assert len(paths) == 3
    assert all(path.stat().st_size <= 100 and path.stat().st_mode & 0o077 == 0 for path in paths)
    assert json.loads(paths[-1].read_text().splitlines()[-1])["place"] == 39
    assert file.lost == 1


def test_nothing_is_captured_unredacted_by_mistake(tmp_path: Path) -> None:
    made = settings(tmp_path, f"captures: {{directory: {tmp_path}/captures}}")
    with pytest.raises(ValueError, match="nothing that redacts"):
        build_governance(made, clock=Clock())
    with pytest.raises(ValueError, match="no regular expression"):
        _redaction(CaptureSettings(directory="d", patterns={"own": "("}))
    with pytest.raises(ValueError, match="at least 1"):
        CaptureSettings(max_files=0)


@pytest.mark.parametrize(
    ("play", "asked", "said"),
    [
        (answers(), {}, ["yes"]),
        (streams(event(piece("a")), event(piece("b ")), event(piece("x", index=1)), END, USAGE_EVENT, DONE),
         {"stream": True, "n": 2}, ["ab ", "x"]),
        (streams(event(piece("", delta={"reasoning": "hm"})), event(piece("so")), END, USAGE_EVENT, DONE),
         {"stream": True}, ["so"]),
    ],
)  # fmt: skip
def test_another_engines_answers_are_written_too(tmp_path: Path, play: Any, asked: Any, said: list[str]) -> None:
    lines = elsewhere(tmp_path, play, CONSENT, **asked)
    assert [json.loads(line)["answers"] for line in lines] == [said]


def test_neither_are_they_without_consent_nor_broken_off(tmp_path: Path) -> None:
    assert elsewhere(tmp_path / "a", answers(), {}) == []
    assert elsewhere(tmp_path / "b", streams(event(piece("a"))), CONSENT, stream=True) == []


def test_what_a_server_began_that_failed_is_not_the_next_ones_answer(tmp_path: Path) -> None:
    async def broken_once(self: Elsewhere, request: Any, body: Any) -> Any:
        error = event({"error": {"message": "no"}})
        texts = [event(piece("a")) + error] if not turns else [event(piece("b")), END, USAGE_EVENT, DONE]
        turns.append(1)
        return await streams(*texts)(self, request, body)

    turns: list[int] = []
    (line,) = elsewhere(tmp_path, broken_once, CONSENT, servers=2, stream=True)
    assert json.loads(line)["answers"] == ["b"]


def elsewhere(tmp_path: Path, play: Any, headers: Any, *, servers: int = 1, **asked: Any) -> list[str]:
    """The lines after a request that servers over HTTP answer."""
    tmp_path.mkdir(exist_ok=True)
    made = settings(tmp_path, f"{GRANTS}captures: {{directory: {tmp_path}/captures}}")

    async def run() -> None:
        async with AsyncExitStack() as stack:
            urls = [await stack.enter_async_context(Elsewhere(play).serving()) for _ in range(servers)]
            remote = {f"server-{place}": RemoteSettings(url=url, poll_s=60.0) for place, url in enumerate(urls)}
            governance = build_governance(made, clock=Clock(), redact=_redaction(made.captures))
            app = build_app(GatewaySettings(upstreams=remote), {}, governance=governance)
            await stack.enter_async_context(lifespan(app))
            await call(app, "POST", CHAT, chat(**asked), Governed.headers(KEY, headers))

    asyncio.run(run())
    return [line for path in (tmp_path / "captures").glob("*.jsonl") for line in path.read_text().splitlines()]
