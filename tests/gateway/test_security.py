"""What strangers try: keys, headers that name a caller, addresses in bodies."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, JSON_HEADERS, call, chat, gateway
from decodeloop.gateway.identity import KeyRing, TrustedProxy
from decodeloop.governance.directory import Directory
from decodeloop.governance.keys import VirtualKey, compose, digest_of, id_of
from decodeloop.governance.settings import ProxySettings
from decodeloop.types import Identity, RequestRefused
from governed import KEY, NOON_S, Governed, run, settings
from scripted import ScriptedUpstream, says

SQL = "' OR '1'='1"


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", f"Bearer {SQL}", f"Bearer {KEY[:-1]}", f"Bearer {KEY}x", f"Basic {KEY}", KEY,
     "Bearer dl-0123456789ab-", "Bearer ..", "Bearer a.b.c", "Bearer \x00\xff"],
)  # fmt: skip
def test_what_is_no_key_is_401(tmp_path: Path, authorization: str | None) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        headers = {} if authorization is None else {"authorization": authorization}
        for method, path in (("POST", CHAT), ("POST", COMPLETIONS), ("GET", "/v1/models"), ("GET", "/v1/policy")):
            got = await call(there.app, method, path, chat(), {**JSON_HEADERS, **headers})
            assert (got.status, got.json()["error"]["code"]) == (401, "invalid_api_key"), path
        assert upstream.requests == []

    run(settings(tmp_path), says("x"), work)


def test_two_authorizations_are_refused(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        sent: list[Any] = []
        headers = [(b"authorization", b"Bearer x"), (b"authorization", f"Bearer {KEY}".encode())]
        scope = {"type": "http", "method": "POST", "path": CHAT, "headers": headers}
        incoming: asyncio.Queue[Any] = asyncio.Queue()

        async def send(message: Any) -> None:
            sent.append(message)

        await there.app(scope, incoming.get, send)
        assert sent[0]["status"] == 400

    run(settings(tmp_path), says("x"), work)


@pytest.mark.parametrize(
    "body",
    [
        {"api_base": "http://10.0.0.1"},
        {"metadata": {"api_base": "http://10.0.0.1"}},
        {"messages": [{"role": "user", "content": "Hi", "extra": [{"deep": {"API_BASE": "x"}}]}]},
        {"decodeloop": {"base_url": "x"}},
        {"metadata": {"api-base": None}},
    ],
)
def test_no_body_chooses_a_server(body: dict[str, Any]) -> None:
    async def work() -> None:
        upstream = ScriptedUpstream(says("x"))
        raw = json.dumps(chat(**body)).encode()
        for sent in (raw, raw.replace(b"api_base", b"\\u0061pi_base")):
            got = await call(gateway(upstream), "POST", CHAT, sent)
            assert got.status == 400
            assert "requests don't choose servers" in got.json()["error"]["message"]
        assert upstream.requests == []
        harmless = [{"role": "user", "content": "my api_base is down"}]
        assert (await call(gateway(upstream), "POST", CHAT, chat(messages=harmless))).status == 200

    asyncio.run(work())


class Asker:
    """An HTTP request's head."""

    def __init__(self, peer: str = "10.1.2.3", **headers: str) -> None:
        self.peer, self._headers = peer, headers

    def sole(self, name: str) -> str | None:
        return self._headers.get(name.replace("-", "_"))


NOBODY = KeyRing(Directory, lambda: NOON_S)
PROXY = ProxySettings(addresses=("10.0.0.0/8", "::1/128"), secret="a secret of the proxy")
NAMED = {"x_decodeloop_organization": "acme", "x_decodeloop_user": "ana", "x_decodeloop_capability": "chat"}


def test_a_trusted_proxy_names_its_callers() -> None:
    proxy = TrustedProxy(PROXY, NOBODY)
    got = proxy.identify(Asker(x_decodeloop_proxy="a secret of the proxy", **NAMED))
    assert got == Identity("acme", "ana", "", "chat", "proxy")


@pytest.mark.parametrize(
    "asker",
    [
        Asker(**NAMED),
        Asker(x_decodeloop_proxy="a guess at the secret", **NAMED),
        Asker("11.1.2.3", x_decodeloop_proxy="a secret of the proxy", **NAMED),
        Asker("", x_decodeloop_proxy="a secret of the proxy", **NAMED),
        Asker(x_decodeloop_proxy="a secret of the proxy"),
    ],
    ids=["no secret", "wrong secret", "elsewhere", "no address", "nobody named"],
)
def test_nobody_else_does(asker: Asker) -> None:
    with pytest.raises(RequestRefused) as refused:
        TrustedProxy(PROXY, NOBODY).identify(asker)
    assert refused.value.status == 401


def test_headers_that_name_a_caller_mean_nothing_by_default(tmp_path: Path) -> None:
    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        headers = {"x-decodeloop-organization": "other", "x-decodeloop-proxy": "x" * 20}
        assert (await there.ask(headers=headers)).status == 200
        assert upstream.requests[0].identity.organization == "acme"
        assert (await there.ask(None, headers=headers)).status == 401

    run(settings(tmp_path), says("x"), work)


def test_keys_end_and_are_revoked() -> None:
    text = compose(b"\x01" * 6, b"\x02" * 32)
    id = id_of(text)
    assert id == "010101010101"

    def ring(**changes: Any) -> KeyRing:
        key = VirtualKey(id=id, digest=digest_of(text), identity=Identity("acme"), **changes)
        return KeyRing(lambda: Directory(keys={id: key}), lambda: NOON_S)

    asker = Asker(authorization=f"Bearer {text}")
    assert ring().identify(asker) == ring(until_s=NOON_S + 1).identify(asker) == Identity("acme")
    for changes in ({"until_s": NOON_S}, {"enabled": False}):
        with pytest.raises(RequestRefused):
            ring(**changes).identify(asker)
    with pytest.raises(ValueError, match="32 secret bytes"):
        compose(b"\x01" * 6, b"\x02" * 16)
