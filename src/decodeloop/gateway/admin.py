"""The admin API: keys, grants, limits and the ledger, on a port of its own and with tokens of its own."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec
import orjson
from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from decodeloop.gateway.errors import internal_error
from decodeloop.gateway.exchange import ClientGone, Exchange
from decodeloop.gateway.identity import bearer
from decodeloop.gateway.registrar import KINDS, Registrar, record_of
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.store import Books, Record, Records, StoreUnavailable
from decodeloop.gateway.store.audit_file import AuditFile
from decodeloop.governance.audit import Entry
from decodeloop.governance.focus import csv_text, focus_rows
from decodeloop.governance.keys import SECRET_BYTES, compose, digest_of, id_of
from decodeloop.governance.settings import GovernanceSettings, KeySettings
from decodeloop.governance.showback import Sums, showback
from decodeloop.types import Identity, RequestRefused

__all__ = ["LIMITS", "AdminApi", "Office", "made_key"]

log = logging.getLogger(__name__)

LIMITS = Limits(max_body_bytes=2**20)
FOREVER_S = 1e12


class _Store(Books, Records, Protocol): ...


class _Losses(Protocol):
    unrecorded: int


class AdminExchange(Exchange):
    def query(self, name: str) -> str | None:
        """The last value of a parameter of the URL."""
        return parse_qs(str(self._scope.get("query_string", b""), "latin-1")).get(name, [None])[-1]


@dataclass(frozen=True, slots=True)
class Office:
    """What the API reads and changes."""

    store: _Store
    registrar: Registrar
    losses: _Losses
    audit: AuditFile | None
    clock: Callable[[], float]


class AdminApi:
    """An ASGI application. Every change is audited."""

    def __init__(self, settings: GovernanceSettings, office: Office) -> None:
        self._settings, self._losses, self._audit, self._clock = settings, office.losses, office.audit, office.clock
        self._store, self._registrar = office.store, office.registrar
        self._tokens = [digest_of(token) for token in settings.admin.tokens]
        self._router = Router(
            [
                Route("/admin/keys", self._endpoint(self._make_key), methods=["POST"]),
                Route("/admin/{kind}", self._endpoint(self._list), methods=["GET"]),
                Route("/admin/{kind}/{id}", self._endpoint(self._put), methods=["PUT"]),
                Route("/admin/{kind}/{id}", self._endpoint(self._remove), methods=["DELETE"]),
                Route("/ledger", self._endpoint(self._ledger), methods=["GET"]),
                Route("/showback", self._endpoint(self._showback), methods=["GET"]),
                Route("/status", self._endpoint(self._status), methods=["GET"]),
            ],
            redirect_slashes=False,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        exchange = AdminExchange(scope, receive, send)
        scope["app"] = self
        scope["exchange"] = exchange
        try:
            self._check(exchange)
            await self._router(scope, receive, send)
        except ClientGone:
            return
        except RequestRefused as refused:
            await exchange.refuse(refused)
        except HTTPException as refused:
            await exchange.refuse(RequestRefused("no such URL or method", status=refused.status_code))
        except StoreUnavailable as error:
            await exchange.refuse(RequestRefused(f"the store can't be used now: {error}", status=503))
        except Exception:
            log.exception("admin request %s failed", exchange.request_id)
            if exchange.status is None:
                await exchange.refuse(internal_error(exchange.request_id))

    def _check(self, exchange: AdminExchange) -> None:
        given = digest_of(bearer(exchange))
        matches = [hmac.compare_digest(given, token) for token in self._tokens]  # all, whichever matches
        if not any(matches):
            raise RequestRefused("this admin token is not valid", status=401, code="invalid_api_key")

    def _endpoint(self, handler: Callable[[AdminExchange], Awaitable[None]]) -> Any:
        return _Endpoint(handler)

    async def _list(self, exchange: AdminExchange) -> None:
        kind = _kind(exchange)
        stored = [record for record in await self._store.read() if record.kind == kind]
        data = [_shown(record) for record in stored]
        configured = [each.id for each in getattr(self._settings, f"{kind}s")]
        await _json(exchange, 200, {"object": "list", "data": data, "configured": configured})

    async def _make_key(self, exchange: AdminExchange) -> None:
        body = _object(await exchange.read_json(LIMITS))
        text, settings = made_key(body)
        await self._store.put(record_of("key", settings))
        await self._changed("create", "key", settings.id)
        await _json(exchange, 201, {"id": settings.id, "key": text})

    async def _put(self, exchange: AdminExchange) -> None:
        kind, id = _kind(exchange), exchange.path_param("id")
        value = _read({**_object(await exchange.read_json(LIMITS)), "id": id}, kind)
        await self._store.put(record_of(kind, value))
        await self._changed("put", kind, id)
        await _json(exchange, 200, {"id": id})

    async def _remove(self, exchange: AdminExchange) -> None:
        kind, id = _kind(exchange), exchange.path_param("id")
        if not await self._store.remove(kind, id):
            raise RequestRefused(f"no {kind} {id!r} is stored (what is configured is removed there)", status=404)
        await self._changed("remove", kind, id)
        await _json(exchange, 200, {"id": id, "removed": True})

    async def _changed(self, what: str, kind: str, id: str) -> None:
        await self._registrar.refresh()
        if self._audit is not None:
            self._audit.write(
                Entry(
                    at_s=self._clock(),
                    kind="admin",
                    identity=Identity("admin"),
                    decision=what,
                    details={"kind": kind, "id": id},
                )
            )

    async def _ledger(self, exchange: AdminExchange) -> None:
        rows = await self._store.rows(*_period(exchange))
        text = await asyncio.to_thread(lambda: csv_text(focus_rows(rows, self._settings.currency)))
        await exchange.respond(200, text.encode(), b"text/csv; charset=utf-8")

    async def _showback(self, exchange: AdminExchange) -> None:
        rows = await self._store.rows(*_period(exchange))
        try:
            sums = showback(rows, exchange.query("by") or "organization")
        except ValueError as error:
            raise RequestRefused(str(error), param="by") from None
        data = [{"name": name, **_sums(each)} for name, each in sums.items()]
        await _json(exchange, 200, {"object": "list", "currency": self._settings.currency, "data": data})

    async def _status(self, exchange: AdminExchange) -> None:
        directory = self._registrar.directory()
        await _json(
            exchange,
            200,
            {
                "keys": len(directory.keys),
                "grants": len(directory.grants),
                "limits": len(directory.limits),
                "open": len(await self._store.open()),
                "unrecorded": self._losses.unrecorded,
                "audit_lost": 0 if self._audit is None else self._audit.lost,
            },
        )


class _Endpoint:
    def __init__(self, handler: Callable[[AdminExchange], Awaitable[None]]) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope["exchange"])


def made_key(body: dict[str, Any]) -> tuple[str, KeySettings]:
    """A new key's text, which is told once, and what is kept of it. Raises RequestRefused for a bad body."""
    text = compose(secrets.token_bytes(6), secrets.token_bytes(SECRET_BYTES))
    refused = body.keys() & {"id", "key", "digest"}
    if refused:
        raise RequestRefused(f"{min(refused)} is made here: leave it out", param=min(refused))
    settings = _read({**body, "id": id_of(text), "digest": digest_of(text)}, "key")
    return text, settings


def _read(body: dict[str, Any], kind: str) -> Any:
    unknown = body.keys() - set(KINDS[kind].__dataclass_fields__)
    if unknown:
        choices = ", ".join(KINDS[kind].__dataclass_fields__)
        raise RequestRefused(f"a {kind} has no {min(unknown)!r}; choose from {choices}", param=min(unknown))
    try:
        return msgspec.convert(body, KINDS[kind])
    except (msgspec.ValidationError, ValueError) as error:
        raise RequestRefused(f"no {kind}: {error}") from None


def _kind(exchange: AdminExchange) -> str:
    plural = exchange.path_param("kind")
    kind = plural.removesuffix("s")
    if kind not in KINDS or plural == kind:
        raise RequestRefused(f"no {plural[:50]!r}; choose from {', '.join(f'{each}s' for each in KINDS)}", status=404)
    return kind


def _object(raw: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise RequestRefused("the request body must be a JSON object")
    return value


def _shown(record: Record) -> dict[str, Any]:
    """Without what opens anything."""
    value = orjson.loads(record.body)
    return {name: each for name, each in value.items() if name not in ("key", "digest")}


def _period(exchange: AdminExchange) -> tuple[float, float]:
    try:
        return float(exchange.query("since") or 0), float(exchange.query("until") or FOREVER_S)
    except ValueError:
        raise RequestRefused("since and until are Unix times in seconds", param="since") from None


def _sums(sums: Sums) -> dict[str, Any]:
    counts = ("requests", "prompt", "cached", "completion", "drafted", "accepted")
    money = ("billed", "cost", "margin")
    return {name: getattr(sums, name) for name in counts} | {name: getattr(sums, name) / 1e9 for name in money}


async def _json(exchange: AdminExchange, status: int, value: Any) -> None:
    await exchange.respond(status, orjson.dumps(value))
