"""Puts governance together from its settings: store, directory, clerk, audit and admin API."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from decodeloop.gateway.admin import AdminApi, Office
from decodeloop.gateway.admin_server import AdminServer
from decodeloop.gateway.captures import Redact, captures_file
from decodeloop.gateway.cedar import CedarPolicies
from decodeloop.gateway.clerk import GovernedClerk
from decodeloop.gateway.identity import Authenticator, KeyRing, OpenDoor, TrustedProxy
from decodeloop.gateway.jwt import JwtVerifier
from decodeloop.gateway.registrar import Registrar, Reload
from decodeloop.gateway.store import Books, Records
from decodeloop.gateway.store.audit_file import AuditFile
from decodeloop.gateway.store.events import EventRecords, open_events
from decodeloop.gateway.store.lines_file import LinesFile
from decodeloop.gateway.store.opening import open_store
from decodeloop.governance.audit import plain_seal, sealed
from decodeloop.governance.capability import PolicyLanguage
from decodeloop.governance.settings import AuditSettings, GovernanceSettings

__all__ = ["Governance", "Store", "audit_file", "build_governance", "language_of"]


class Store(Books, Records, Protocol):
    """One place for all."""


@dataclass(frozen=True, slots=True)
class Governance:
    """Started before the gateway takes requests, closed after it has answered them."""

    store: Store
    registrar: Registrar
    clerk: GovernedClerk
    authenticator: Authenticator
    audit: AuditFile | None
    admin: AdminServer | None
    settings: GovernanceSettings
    captures: LinesFile | None
    events: EventRecords
    clock: Callable[[], float]

    async def start(self) -> None:
        async with AsyncExitStack() as undo:
            if self.audit is not None:
                self.audit.start()
                undo.callback(self.audit.close)
            if self.captures is not None:
                self.captures.start()
                undo.callback(self.captures.close)
            await self.store.start()
            undo.push_async_callback(self.store.close)
            await self.events.start()
            await self.registrar.start()
            undo.push_async_callback(self.registrar.close)
            await self.clerk.start()
            undo.push_async_callback(self.clerk.close)
            if self.admin is not None:
                await self.admin.start()
            undo.pop_all()

    async def close(self) -> None:
        if self.admin is not None:
            await self.admin.close()
        await self.clerk.close()
        await self.registrar.close()
        await self.store.close()
        for file in (self.captures, self.audit):
            if file is not None:
                await asyncio.to_thread(file.close)


def build_governance(
    settings: GovernanceSettings,
    *,
    clock: Callable[[], float],
    reload: Reload = lambda: None,
    redact: Redact | None = None,
) -> Governance:
    """Nothing is opened yet. clock: Unix seconds. reload: what the configuration says, when it has changed. redact: for
    what is captured.

    Raises ValueError for settings that can't be used, ImportError for a package that they need.
    """
    instance = uuid.uuid4().hex[:12]
    store = open_store(settings, instance=instance, clock=clock)
    registrar = Registrar(settings, store, language_of, reload)
    audit = audit_file(settings.audit, instance)
    captures = captures_file(settings.captures, instance, redact)
    clerk = GovernedClerk(settings, registrar.directory, store, audit, clock, captures=captures)
    admin = None
    if settings.admin.tokens:
        api = AdminApi(settings, Office(store, registrar, clerk, audit, clock))
        admin = AdminServer(api, settings.admin)
    authenticator = _authenticator(settings, registrar, clock)
    return Governance(
        store, registrar, clerk, authenticator, audit, admin, settings, captures, open_events(store), clock
    )


def language_of(text: str) -> PolicyLanguage | None:
    return CedarPolicies(text) if text.strip() else None


def audit_file(settings: AuditSettings, name: str) -> AuditFile | None:
    if settings.directory is None:
        return None
    seal = sealed(settings.key) if settings.key else plain_seal
    return AuditFile(Path(settings.directory), name, seal)


def _authenticator(settings: GovernanceSettings, registrar: Registrar, clock: Callable[[], float]) -> Authenticator:
    """Where nobody is known, and no administrator can make anyone known, everyone is the local user."""
    known = settings.keys or settings.jwt or settings.admin.tokens or settings.trusted_proxy
    jwt = None if settings.jwt is None else JwtVerifier(settings.jwt)
    ring: Authenticator = KeyRing(registrar.directory, clock, jwt) if known else OpenDoor()
    return ring if settings.trusted_proxy is None else TrustedProxy(settings.trusted_proxy, ring)
