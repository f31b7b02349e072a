"""Metrics by class and pool, of money, and of what was lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from asgi import CHAT, call, chat
from decodeloop.gateway.app import build_app
from decodeloop.gateway.class_meter import quantile
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.types import Chunk, FinishReason, Request, Usage
from elsewhere import DONE, END, Elsewhere, event, gateway_before, piece, streams
from governed import OTHER, Governed, governed, run, says_tokens, settings
from scripted import ScriptedUpstream, Step, report


def values(page: bytes, name: str) -> dict[tuple[str, ...], float]:
    """By the labels' values, in the labels' order of names."""
    found = {}
    for labels, value in re.findall(rf"^{name}{{(.*?)}} (\S+)$", page.decode(), re.M):
        found[tuple(re.findall(r'="(.*?)"', labels))] = float(value)
    return found


def single(page: bytes, name: str) -> float:
    (value,) = re.findall(rf"^{name} (\S+)$", page.decode(), re.M)
    return float(value)


def drafting(request: Request) -> Iterable[Step]:
    """6 tokens; of drafts of 4 and 4 that are verified, 3 and 0 are accepted."""
    for place in range(6):
        yield Chunk(text="x", token_ids=(place,))
        yield 0.001
    told = report(request, drafted=9, verified=8, accepted=3, accepted_per_step=(3, 0), verified_per_step=(4, 4))
    yield Chunk(finish_reason=FinishReason.STOP, usage=Usage(7, 4, 6, 9, 8, 3), report=told)


def test_acceptance_length_and_time_of_a_token_by_class() -> None:
    async def whole() -> None:
        app = build_app(GatewaySettings(), {"own": ScriptedUpstream(drafting)})
        for kind in ("sql", "sql", "code_edit"):
            await call(app, "POST", CHAT, chat(decodeloop={"class": kind}))
        page = (await call(app, "GET", "/metrics")).body
        sql, edit = ("sql", "default"), ("code_edit", "default")
        assert values(page, "decodeloop_class_requests_total") == {sql: 2, edit: 1}
        assert values(page, "decodeloop_class_completion_tokens_total") == {sql: 12, edit: 6}
        assert values(page, "decodeloop_class_drafted_tokens_total") == {sql: 18, edit: 9}
        assert values(page, "decodeloop_class_verified_tokens_total") == {sql: 16, edit: 8}
        assert values(page, "decodeloop_class_accepted_tokens_total") == {sql: 6, edit: 3}
        assert values(page, "decodeloop_acceptance_rate") == {sql: 3 / 8, edit: 3 / 8}
        assert values(page, "decodeloop_mean_acceptance_length") == {sql: 1 + 3 / 2, edit: 1 + 3 / 2}
        times = values(page, "decodeloop_tpot_seconds")
        assert {key[2] for key in times} == {"0.5", "0.9", "0.99"}
        assert 0 < times[*sql, "0.5"] <= times[*sql, "0.9"] <= times[*sql, "0.99"]

    asyncio.run(whole())


def test_other_engines_answers_have_theirs() -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 3}
    told = {"speculative_decoding": {"num_draft_tokens": 10, "num_accepted_draft_tokens": 4}}
    last = event({"id": "c", "choices": [], "usage": usage, "metrics": told})

    async def whole() -> None:
        server = Elsewhere(streams(event(piece("a")), 0.002, event(piece("b")), END, last, DONE))
        async with gateway_before(server) as app:
            await call(app, "POST", CHAT, chat(stream=True, decodeloop={"class": "sql"}))
            page = (await call(app, "GET", "/metrics")).body
        key = ("sql", "default")
        assert values(page, "decodeloop_acceptance_rate") == {key: 0.4}
        assert values(page, "decodeloop_mean_acceptance_length") == {}, "it doesn't say how many drafts"
        assert values(page, "decodeloop_tpot_seconds")[*key, "0.99"] > 0

    asyncio.run(whole())


def test_quantiles_lie_between_their_neighbours() -> None:
    assert quantile([3.0], 0.99) == 3.0
    assert quantile([0.0, 10.0], 0.9) == pytest.approx(9.0)
    assert quantile([float(place) for place in range(101)], 0.99) == pytest.approx(99.0)


def test_what_a_million_tokens_cost_by_class_and_pool(tmp_path: Path) -> None:
    """A request's machine time by its report is 10.875 ms, at 0.001 a second; 7 tokens read at 1, 5 said at 4."""

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        for kind in ("sql", "sql", "code_edit"):
            await there.ask(decodeloop={"class": kind})
        page = (await call(there.app, "GET", "/metrics")).body
        sql = ("sql", "USD", "default")
        assert values(page, "decodeloop_billed_total")[sql] == pytest.approx(2 * 27e-6)
        assert values(page, "decodeloop_attributed_cost_total")[sql] == pytest.approx(2 * 10.875e-6)
        assert values(page, "decodeloop_billed_per_million_tokens")[sql] == pytest.approx(27 / 5)
        assert values(page, "decodeloop_cost_per_million_tokens")[sql] == pytest.approx(10.875 / 5)
        assert len(values(page, "decodeloop_billed_total")) == 2

    run(settings(tmp_path), says_tokens(5), work)


def test_what_was_not_recorded_and_what_was_lost(tmp_path: Path) -> None:
    async def work(there: Governed) -> None:
        page = (await call(there.app, "GET", "/metrics")).body
        assert single(page, "decodeloop_unrecorded_requests_total") == 0
        assert single(page, "decodeloop_audit_entries_lost_total") == 0
        assert b"decodeloop_captures_lost" not in page, "nothing is captured here"
        await there.governance.store.do(lambda db: db.execute("ALTER TABLE reservations RENAME TO elsewhere"))
        assert (await there.ask(OTHER)).status == 200
        there.governance.audit.lost += 3
        page = (await call(there.app, "GET", "/metrics")).body
        assert single(page, "decodeloop_unrecorded_requests_total") == 1
        assert single(page, "decodeloop_audit_entries_lost_total") == 3
        await there.governance.store.do(lambda db: db.execute("ALTER TABLE elsewhere RENAME TO reservations"))

    async def whole() -> Any:
        made = settings(tmp_path, f"audit: {{directory: {tmp_path}/audit}}")
        async with governed(made, ScriptedUpstream(says_tokens(5))) as there:
            await work(there)

    asyncio.run(whole())
