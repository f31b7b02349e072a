"""What grants and policies keep apart, on every request; and the directory that holds them."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import pytest

from decodeloop.gateway.store.audit_file import chain_files, verify_file
from decodeloop.governance.audit import plain_seal
from decodeloop.types import SpeculationMode
from governed import OTHER, Governed, run, says_tokens, settings
from scripted import ScriptedUpstream


def _says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


GRANTS = """
grants:
  - {id: chat, scope: {organization: acme}, models: [tiny], max_draft_len: 4, capture_content: true}
audit: {directory: %s}
"""


def test_grants_are_evaluated_on_every_request(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = await there.ask(OTHER)
        assert (got.status, got.json()["error"]["code"]) == (403, "permission_denied")
        assert "no grant covers other/bob/-/-" in got.json()["error"]["message"]
        assert upstream.requests == []
        got = await there.ask(decodeloop={"speculation": "force", "draft_len": 9})
        assert got.status == 200
        assert upstream.requests[-1].speculation.mode is SpeculationMode.AUTO
        assert upstream.requests[-1].speculation.draft_len == 4
        assert "does not allow speculation 'force'" in got.headers["x-decodeloop-denied"]
        assert (await there.ask()).headers.get("x-decodeloop-denied") is None
        consent = {"x-decodeloop-capture": "consent"}
        assert (await there.ask(messages=_says("a secret"), headers=consent)).status == 200
        assert (await there.ask(messages=_says("a secret"))).status == 200

    run(settings(tmp_path, GRANTS % tmp_path), says_tokens(3), work)
    (path,) = chain_files(tmp_path)
    head, fault = verify_file(path, plain_seal)
    assert (head.count, fault) == (5, None)
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    assert [entry["kind"] for entry in entries] == ["denial", *["request"] * 4]
    assert entries[0]["who"][:2] == ["other", "bob"]
    assert entries[1]["reason"] == "without speculation"
    assert entries[1]["details"]["grant"] == "chat"
    assert [entry["content"] is not None for entry in entries] == [False, False, False, True, False]
    assert entries[3]["content"] == {"prompts": [_says("a secret")], "answers": ["xxx"]}


def test_who_may_not_speculate_is_served_plainly(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        assert (await there.ask()).status == 200
        speculation = upstream.requests[-1].speculation
        assert (speculation.mode, speculation.denied) == (SpeculationMode.OFF, True)

    run(settings(tmp_path, "grants: [{id: g, max_draft_len: 0}]"), says_tokens(1), work)


def test_denied_overrides_can_be_refused(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        got = await there.ask(decodeloop={"speculation": "force"})
        assert (got.status, got.json()["error"]["param"]) == (403, "decodeloop.speculation")

    run(settings(tmp_path, "grants: [{id: g}]\nrefuse_denied_overrides: true"), says_tokens(1), work)


CEDAR = """
cedar: |
  permit(principal, action, resource) when { principal.organization == "acme" && context.speculation != "force" };
"""


def test_cedar_policies_take_away(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        assert (await there.ask()).status == 200
        assert (await there.ask(OTHER)).status == 403
        assert (await there.ask(decodeloop={"speculation": "force"})).status == 403

    run(settings(tmp_path, CEDAR), says_tokens(1), work)
    with pytest.raises(ValueError, match="cedar"):
        run(settings(tmp_path, "cedar: 'permit(all'"), says_tokens(1), work)


def test_what_is_stored_holds_within_a_second_and_the_last_good_directory_stays(tmp_path: Path) -> None:
    from decodeloop.gateway.admin import made_key
    from decodeloop.gateway.registrar import record_of
    from decodeloop.gateway.store import Record

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        text, made = made_key({"organization": "late"})
        assert (await there.ask(text)).status == 401
        await there.governance.store.put(record_of("key", made))
        deadline = time.monotonic() + 20
        while (await there.ask(text)).status != 200:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await there.governance.store.put(Record("grant", "broken", "{"))
        await there.governance.registrar.refresh()
        assert (await there.ask(text)).status == 200, "a record that can't be read changes nothing"
        await there.governance.store.remove("grant", "broken")
        await there.governance.store.remove("key", made.id)
        await there.governance.registrar.refresh()
        assert (await there.ask(text)).status == 401

    run(settings(tmp_path), says_tokens(1), work)
