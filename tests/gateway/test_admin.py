"""The administrators' API."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from asgi import Response, call
from decodeloop.gateway.store.audit_file import chain_files
from governed import KEY, Governed, run, says_tokens, settings
from scripted import ScriptedUpstream


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
