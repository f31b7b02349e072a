"""Which store the settings name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from decodeloop.gateway.store.sqlite import SqliteBooks
from decodeloop.governance.settings import GovernanceSettings

if TYPE_CHECKING:
    from decodeloop.gateway.store.shared import SharedBooks

__all__ = ["open_store"]

SQLITE = "sqlite:"
POSTGRES = ("postgresql://", "postgres://")


def open_store(settings: GovernanceSettings, *, instance: str, clock: Callable[[], float]) -> SqliteBooks | SharedBooks:
    """Not started. Raises ValueError where the settings name none, ImportError where its package is missing."""
    store = settings.store
    if store.startswith(SQLITE):
        if settings.counters:
            raise ValueError("counters (Redis) go with a store in PostgreSQL: SQLite keeps its own")
        return SqliteBooks(
            store.removeprefix(SQLITE),
            instance=instance,
            clock=clock,
            lease_s=settings.lease_s,
            full_sync=settings.full_sync,
            idempotency=settings.idempotency,
        )
    if store.startswith(POSTGRES):
        if not settings.counters:
            raise ValueError("a store in PostgreSQL needs counters: redis://...")
        from decodeloop.gateway.store.shared import SharedBooks

        return SharedBooks(
            store,
            settings.counters,
            instance=instance,
            clock=clock,
            lease_s=settings.lease_s,
            idempotency=settings.idempotency,
        )
    raise ValueError(f"no store {store!r}; choose from sqlite:PATH, postgresql://...")
