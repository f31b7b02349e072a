"""Keeps the directory: settings and stored records together, replaced whole when either changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec

from decodeloop.gateway.store import Record, Records, StoreUnavailable
from decodeloop.governance.capability import Grant, PolicyLanguage
from decodeloop.governance.directory import Directory
from decodeloop.governance.settings import GovernanceSettings, KeySettings, LimitSettings

__all__ = ["KINDS", "Registrar", "directory_of", "record_of"]

log = logging.getLogger(__name__)

T = TypeVar("T")

KINDS: dict[str, Any] = {"key": KeySettings, "grant": Grant, "limit": LimitSettings}

POLL_S = 1.0

Reload = Callable[[], GovernanceSettings | None]  # None: nothing changed; raises ValueError for what can't be used


def record_of(kind: str, value: KeySettings | Grant | LimitSettings) -> Record:
    return Record(kind, value.id, msgspec.json.encode(value).decode())


def directory_of(
    settings: GovernanceSettings, records: Sequence[Record], language: PolicyLanguage | None = None
) -> Directory:
    """What is stored comes beside what is configured; of one id the configured one holds."""
    keys = {each.id: each for each in [*_stored(records, "key", KeySettings), *settings.keys]}
    grants = {each.id: each for each in [*_stored(records, "grant", Grant), *settings.grants]}
    limits = {each.id: each for each in [*_stored(records, "limit", LimitSettings), *settings.limits]}
    return Directory(
        keys={id: each.record() for id, each in keys.items()},
        grants=tuple(grants.values()),
        limits=tuple(each.record() for each in limits.values()),
        prices=settings.prices,
        drafters={each.name: each for each in settings.drafters},
        language=language,
    )


def _stored(records: Sequence[Record], kind: str, wanted: type[T]) -> list[T]:
    return [msgspec.json.decode(record.body, type=wanted) for record in records if record.kind == kind]


class Registrar:
    """Owns the directory. reload: looks whether the configuration changed."""

    def __init__(
        self,
        settings: GovernanceSettings,
        records: Records,
        language: Callable[[str], PolicyLanguage | None],
        reload: Reload = lambda: None,
    ) -> None:
        self._settings, self._records, self._language, self._reload = settings, records, language, reload
        self._revision = -1
        self._stored: Sequence[Record] = ()
        self._directory = directory_of(settings, (), language(settings.cedar))
        self._watch: asyncio.Task[None] | None = None

    def directory(self) -> Directory:
        return self._directory

    async def start(self) -> None:
        await self.refresh()
        self._watch = asyncio.create_task(self._watching())

    async def close(self) -> None:
        if self._watch is not None:
            self._watch.cancel()

    async def refresh(self) -> None:
        """See what was stored since. What can't be used leaves the last good directory."""
        revision = await self._records.revision()
        if revision != self._revision:
            self._revision, stored = revision, await self._records.read()
            self._replace(self._settings, stored)

    async def _watching(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            try:
                await self.refresh()
            except StoreUnavailable as error:
                log.warning("the directory can't be read: %s", error)
            try:
                changed = await asyncio.to_thread(self._reload)
            except (ValueError, OSError) as error:
                log.warning("the configuration stays as it was: %s", error)
                continue
            if changed is not None:
                self._replace(changed, self._stored)

    def _replace(self, settings: GovernanceSettings, stored: Sequence[Record]) -> None:
        try:
            directory = directory_of(settings, stored, self._language(settings.cedar))
        except (ValueError, msgspec.MsgspecError) as error:
            log.warning("keys, grants and limits stay as they were: %s", error)
            return
        self._settings, self._stored, self._directory = settings, stored, directory
        log.info(
            "%d keys, %d grants, %d limits hold", len(directory.keys), len(directory.grants), len(directory.limits)
        )
