"""A smaller model answers for a name where the class allows it and the caller may: never silently, never otherwise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, JSON_HEADERS, call, chat, connect, lifespan
from decodeloop import config
from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.governance import build_governance
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams.remote import RemoteSettings
from decodeloop.types import RequestClass
from elsewhere import Elsewhere, answers
from governed import KEY, OTHER, Clock, Governed, settings
from scripted import ScriptedUpstream, says

ALIASES = """
aliases:
  assistant:
    model: big
    smaller:
      - {model: small, classes: [support_chat, general_chat]}
      - {model: tiny, classes: [translation], guessed: true}
pools:
  large: {upstreams: [big]}
  little: {upstreams: [small, tiny]}
"""
NAMES = ("big", "small", "tiny")


def built(text: str = ALIASES, *, classify: Any = None, governance: Any = None) -> tuple[Gateway, Any]:
    upstreams = {name: ScriptedUpstream(says("a"), models=(name,)) for name in NAMES}
    more = {} if classify is None else {"classify": classify}
    app = build_app(config.load(text, GatewaySettings, env={}), upstreams, governance=governance, **more)
    return app, upstreams


def asked(body: dict[str, Any], path: str = CHAT, **made: Any) -> Any:
    async def run() -> Any:
        app, _ = built(**made)
        return await call(app, "POST", path, body)

    return asyncio.run(run())


def of(request_class: str | None, **more: Any) -> dict[str, Any]:
    declared = {} if request_class is None else {"decodeloop": {"class": request_class}}
    return chat(**{"model": "assistant", **declared, **more})


@pytest.mark.parametrize("stream", [False, True])
def test_a_class_that_is_listed_is_answered_by_the_smaller_model_and_told_so(stream: bool) -> None:
    got = asked(of("support_chat", stream=stream))
    assert got.headers["x-decodeloop-model"] == "small"
    assert got.headers["x-decodeloop-model-reason"] == "class support_chat allows it"
    assert got.headers["x-decodeloop-pool"] == "little"
    answers = got.events()[:-1] if stream else [got.json()]
    assert {each["model"] for each in answers} == {"small"}


@pytest.mark.parametrize(
    "request_class", [each for each in RequestClass if each not in ("support_chat", "general_chat")]
)
def test_no_other_class_is(request_class: RequestClass) -> None:
    got = asked(of(request_class.value))
    wanted = "tiny" if request_class is RequestClass.TRANSLATION else "big"
    assert got.json()["model"] == got.headers["x-decodeloop-model"] == wanted
    assert ("not for class" in got.headers["x-decodeloop-model-reason"]) is (wanted == "big")


@pytest.mark.parametrize(("guess", "model"), [("general_chat", "big"), ("translation", "tiny")])
def test_a_guessed_class_counts_only_where_that_is_said(guess: str, model: str) -> None:
    got = asked(of(None), classify=lambda prompt: RequestClass(guess))
    assert got.json()["model"] == model
    assert ("was guessed" in got.headers["x-decodeloop-model-reason"]) is (model == "big")


def test_who_names_a_model_gets_it() -> None:
    got = asked(of("support_chat", model="big"))
    assert got.json()["model"] == "big"
    assert "x-decodeloop-model" not in got.headers
    assert asked(of("support_chat", model="other")).status == 404


def test_text_completions_too() -> None:
    got = asked({"model": "assistant", "prompt": "Hi", "decodeloop": {"class": "support"}}, COMPLETIONS)
    assert got.json()["model"] == "small"


def test_a_smaller_model_that_is_down_leaves_the_name_to_its_own() -> None:
    async def run() -> None:
        app, upstreams = built()
        upstreams["small"].is_ready = False
        got = await call(app, "POST", CHAT, of("support_chat"))
        assert (got.json()["model"], got.headers["x-decodeloop-model-reason"]) == (
            "big",
            "small is not ready; tiny is not for class support_chat",
        )

    asyncio.run(run())


def test_models_are_listed_with_what_may_answer_for_a_name() -> None:
    async def run() -> None:
        app, _ = built()
        listed = (await call(app, "GET", "/v1/models")).json()["data"]
        assert [each["id"] for each in listed] == ["assistant", "big", "small", "tiny"]
        assert listed[0]["decodeloop"]["model"] == "big"
        assert listed[0]["decodeloop"]["smaller"][0]["classes"] == ["support_chat", "general_chat"]
        assert (await call(app, "GET", "/v1/models/assistant")).json() == listed[0]

    asyncio.run(run())


def test_explain_says_why_and_runs_nothing() -> None:
    async def run() -> None:
        app, upstreams = built()
        told = (await call(app, "POST", "/v1/explain", of("support_chat"))).json()
        assert (told["model"], told["asked_model"], told["pool"]) == ("small", "assistant", "little")
        assert told["model_reason"] == "class support_chat allows it"
        told = (await call(app, "POST", "/v1/explain", of("sql"))).json()
        assert (told["model"], told["pool"]) == ("big", "large")
        assert "small is not for class sql" in told["model_reason"]
        assert (await call(app, "POST", "/v1/explain", of("sql", model="nobody"))).status == 404
        assert not any(upstream.requests for upstream in upstreams.values())
        assert all(member.in_flight == 0 for member in app.fleet.members.values())

    asyncio.run(run())


def test_an_alias_of_an_alias_is_refused() -> None:
    with pytest.raises(ValueError, match="stands for another alias"):
        config.load("aliases: {a: {model: b}, b: {model: c}}", GatewaySettings, env={})
    with pytest.raises(ValueError, match="no_class"):
        config.load("aliases: {a: {model: b, smaller: [{model: c, classes: [no_class]}]}}", GatewaySettings, env={})


GRANTS = """
grants:
  - {id: all, scope: {organization: acme}, models: [assistant]}
  - {id: large-only, scope: {organization: other}, models: [assistant], smaller_models: []}
"""


def under(tmp_path: Path, work: Callable[[Gateway, Any], Any], text: str = GRANTS) -> str:
    """The audit's text."""

    async def run() -> None:
        audit = f"audit: {{directory: {tmp_path}/audit}}"
        governance = build_governance(settings(tmp_path, f"{text}{audit}"), clock=Clock())
        app, _ = built(governance=governance)
        async with lifespan(app):
            await work(app, governance)

    asyncio.run(run())
    (chain,) = (tmp_path / "audit").glob("*.jsonl")
    return chain.read_text()


def test_an_identity_may_be_denied_smaller_models(tmp_path: Path) -> None:
    async def work(app: Gateway, governance: Any) -> None:
        granted = await call(app, "POST", CHAT, of("support_chat"), Governed.headers(KEY))
        denied = await call(app, "POST", CHAT, of("support_chat"), Governed.headers(OTHER))
        assert [each.json()["model"] for each in (granted, denied)] == ["small", "big"]
        assert "'large-only' does not let 'small' answer" in denied.headers["x-decodeloop-model-reason"]
        direct = await call(app, "POST", CHAT, of("support_chat", model="small"), Governed.headers(KEY))
        assert direct.status == 403, "the grant is for the name"
        rows = {row.identity.organization: row for row in await governance.store.rows(0, 1e12)}
        assert (rows["acme"].model, rows["acme"].asked_model) == ("small", "assistant")
        assert (rows["other"].model, rows["other"].asked_model) == ("big", "assistant")

    audit = under(tmp_path, work)
    assert '"capability":"small@little"' in audit
    assert '"asked_model":"assistant"' in audit
    assert "class support_chat allows it" in audit


def test_policies_in_cedar_may_deny_it(tmp_path: Path) -> None:
    async def work(app: Gateway, governance: Any) -> None:
        got = await call(app, "POST", CHAT, of("support_chat"), Governed.headers(KEY))
        assert got.json()["model"] == "big"

    text = """
cedar: |
  permit(principal, action, resource);
  forbid(principal, action, resource) when { context.smaller == "small" };
"""
    under(tmp_path, work, text)


def test_another_engine_is_asked_for_its_own_model() -> None:
    async def run() -> None:
        big, small = Elsewhere(answers(), models=("b",)), Elsewhere(answers(), models=("s",))
        async with big.serving() as one, small.serving() as two:
            text = "aliases: {it: {model: big, smaller: [{model: small, classes: [sql]}]}}"
            made = config.load(text, GatewaySettings, env={})
            remote = {
                "one": RemoteSettings(url=one, poll_s=60.0, models={"big": "b"}),
                "two": RemoteSettings(url=two, poll_s=60.0, models={"small": "s"}),
            }
            app = build_app(GatewaySettings(upstreams=remote, aliases=made.aliases), {})
            async with lifespan(app):
                for request_class in ("sql", "translation"):
                    got = await connect(app, "POST", CHAT, of(request_class, model="it"), JSON_HEADERS).response()
                    assert got.status == 200
        assert [body["model"] for body in small.bodies] == ["s"]
        assert [body["model"] for body in big.bodies] == ["b"]

    asyncio.run(run())


TWO_POOLS = """
pools:
  slow: {upstreams: [slow]}
  fast: {upstreams: [fast]}
"""


def test_explain_heeds_the_headers_that_a_request_does() -> None:
    """The objective of the first token: who was too slow for it is not where the request would go."""

    async def run() -> None:
        servers = {name: ScriptedUpstream(says("a")) for name in ("slow", "fast")}
        app = build_app(config.load(TWO_POOLS, GatewaySettings, env={}), servers)
        body = chat(model="tiny")
        for path in ("/v1/explain", CHAT):
            app.fleet.members["slow"].heard(9.0, time.monotonic())
            soon = await call(app, "POST", path, body, {**JSON_HEADERS, "x-slo-ttft-ms": "50"})
            pool = soon.json()["pool"] if path != CHAT else soon.headers["x-decodeloop-pool"]
            assert (soon.status, pool) == (200, "fast")
            wrong = await call(app, "POST", path, body, {**JSON_HEADERS, "x-slo-ttft-ms": "soon"})
            assert (wrong.status, wrong.json()["error"]["param"]) == (400, "x-slo-ttft-ms")

    asyncio.run(run())
