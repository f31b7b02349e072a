"""What strangers try: keys, tokens, headers, addresses in bodies; and what grants keep apart."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwk, jwt

from asgi import CHAT, COMPLETIONS, JSON_HEADERS, Response, call, chat, gateway
from decodeloop.gateway.identity import KeyRing, TrustedProxy
from decodeloop.gateway.jwt import JwtVerifier
from decodeloop.gateway.store.audit_file import chain_files, verify_file
from decodeloop.governance.audit import plain_seal
from decodeloop.governance.directory import Directory
from decodeloop.governance.keys import VirtualKey, compose, digest_of, id_of
from decodeloop.governance.settings import JwtSettings, ProxySettings
from decodeloop.types import Identity, RequestRefused, SpeculationMode
from governed import KEY, NOON_S, OTHER, Governed, run, says_tokens, settings
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
        assert (await call(gateway(upstream), "POST", CHAT, chat(messages=_says("my api_base is down")))).status == 200

    asyncio.run(work())


def _says(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


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


SIGNER = jwk.OKPKey.generate_key("Ed25519", parameters={"kid": "one"})
GOOD = {
    "iss": "https://idp", "aud": ["x", "decodeloop"], "exp": NOON_S + 60, "sub": "ana", "org": "acme",
    "act": {"sub": "coder"}, "scope": "openid decodeloop:review",
}  # fmt: skip


def verifier() -> JwtVerifier:
    keys = json.dumps({"keys": [SIGNER.as_dict(private=False)]})
    return JwtVerifier(JwtSettings(keys=keys, issuer="https://idp", audience="decodeloop"))


def token(key: Any = SIGNER, algorithm: str = "Ed25519", **changes: Any) -> str:
    claims = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    return jwt.encode({"alg": algorithm, "kid": "one"}, claims, key, algorithms=[algorithm])


def test_a_token_says_who_asks_and_for_whom() -> None:
    there = verifier()
    for _ in range(2):  # the second time from memory
        assert there.identity(token(), NOON_S) == Identity("acme", "ana", "coder", "review", "jwt:ana")
    assert there.identity(token(act=None, scope=None), NOON_S) == Identity("acme", "ana", "", "", "jwt:ana")


@pytest.mark.parametrize(
    "bad",
    [
        lambda: token(iss="https://else"),
        lambda: token(aud="else"),
        lambda: token(exp=NOON_S - 60),
        lambda: token(exp=None),
        lambda: token(nbf=NOON_S + 60),
        lambda: token(sub=None),
        lambda: token(org=None),
        lambda: token(sub=["ana"]),
        lambda: token(key=jwk.OKPKey.generate_key("Ed25519", parameters={"kid": "one"})),
        lambda: token()[:-4] + "AAAA",
        lambda: "e30.e30.",
        lambda: "\udcff.é.x",
        lambda: "a" * 20_000 + ".b.c",
    ],
)
def test_other_tokens_say_nothing(bad: Any) -> None:
    assert verifier().identity(bad(), NOON_S) is None


def test_no_token_chooses_its_algorithm() -> None:
    secret = jwk.OctKey.import_key(json.dumps(SIGNER.as_dict(private=False)))
    forged = jwt.encode({"alg": "HS256", "kid": "one"}, GOOD, secret, algorithms=["HS256"])
    assert verifier().identity(forged, NOON_S) is None


def test_a_remembered_token_ends() -> None:
    there = verifier()
    good = token()
    assert there.identity(good, NOON_S) is not None
    assert there.identity(good, NOON_S + 100) is None
    assert there.identity(good, NOON_S + 100) is None


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


def test_the_admin_api(tmp_path: Path) -> None:
    from decodeloop.gateway.admin import AdminApi, Office

    async def work(there: Governed, upstream: ScriptedUpstream) -> None:
        governance = there.governance
        assert governance.admin is not None
        office = Office(governance.store, governance.registrar, governance.clerk, governance.audit, there.clock)
        api = AdminApi(made, office)

        async def ask(method: str, path: str, body: Any = b"", token: str = TOKEN) -> Response:
            return await _admin(api, method, path, body, token)

        assert (await ask("GET", "/admin/keys", token="x" * 20)).status == 401
        assert (await ask("GET", "/admin/keys", token=KEY)).status == 401, "a caller's key opens nothing here"
        created = await ask("POST", "/admin/keys", {"organization": "new", "user": "eve"})
        assert created.status == 201
        key = created.json()["key"]
        assert (await there.ask(key)).status == 200, "it holds at once"
        listed = (await ask("GET", "/admin/keys")).json()
        assert [each["user"] for each in listed["data"]] == ["eve"]
        assert "digest" not in listed["data"][0]
        limit = {"unit": "requests", "amount": 1, "window": "day", "scope": {"organization": "new"}}
        assert (await ask("PUT", "/admin/limits/one", limit)).status == 200
        assert [(await there.ask(key)).status for _ in range(2)] == [200, 429]
        assert (await ask("PUT", "/admin/limits/one", {**limit, "unit": "apples"})).status == 400
        assert "choose from" in (await ask("PUT", "/admin/grants/g", {"model": "x"})).json()["error"]["message"]
        assert (await ask("GET", "/admin/moons")).status == 404
        assert (await ask("DELETE", "/admin/limits/two")).status == 404
        assert (await ask("DELETE", "/admin/limits/one")).status == 200
        assert (await ask("DELETE", f"/admin/keys/{created.json()['id']}")).status == 200
        assert (await there.ask(key)).status == 401
        data = (await ask("GET", "/showback?by=user")).json()["data"]
        assert [(each["name"], each["requests"]) for each in data] == [("new/eve", 2)]
        assert (await ask("GET", "/showback?by=moon")).status == 400
        assert (await ask("GET", "/ledger?since=x")).status == 400
        assert (await ask("GET", "/ledger")).body.startswith(b"BilledCost,")
        assert (await ask("GET", "/status")).json()["unrecorded"] == 0
        assert (await ask("PUT", "/admin/grants/g", b"[]")).status == 400
        assert (await ask("GET", "/nowhere")).status == 404
        assert (await call(there.app, "GET", "/admin/keys", b"", there.headers(KEY))).status == 404, "not on this port"

    text = f"admin: {{port: 0, tokens: [{TOKEN}]}}\naudit: {{directory: {tmp_path}}}"
    made = settings(tmp_path, text)
    run(made, says_tokens(2), work)
    (path,) = chain_files(tmp_path)
    kinds = [json.loads(line) for line in path.read_text().splitlines()]
    assert [each["decision"] for each in kinds if each["kind"] == "admin"] == ["create", "put", "remove", "remove"]


TOKEN = "an administrator's token"


async def _admin(api: Any, method: str, url: str, body: Any, token: str) -> Response:
    path, _, query = url.partition("?")
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent: list[Any] = []
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": raw, "more_body": False})
    headers = [(b"authorization", f"Bearer {token}".encode()), (b"content-type", b"application/json")]
    scope = {
        "type": "http", "method": method, "path": path, "query_string": query.encode(), "headers": headers,
    }  # fmt: skip

    async def send(message: Any) -> None:
        sent.append(message)

    await api(scope, incoming.get, send)
    return Response(sent[0]["status"], {}, b"".join(each.get("body", b"") for each in sent[1:]))
