"""The durable half of shared books: reservations, ledger and settled charges in PostgreSQL, in whole transactions.

The row in `fence` says which copy of the counters Redis has: who made a reservation in one copy can't record it once
there is another.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from decodeloop.gateway.store import Idempotency, Opening, Recalled, Record, Reserved, StoreUnavailable
from decodeloop.gateway.store.columns import (
    NAMES,
    from_values,
    holds_json,
    read_holds,
    read_reservation,
    reservation_json,
    values,
)
from decodeloop.gateway.store.postgres_steps import (
    ADD,
    SCHEMA_LOCK,
    SELECT,
    TABLES,
    Settled,
    entry_of,
    keep,
    recall,
    taken,
)
from decodeloop.governance.ledger import LedgerRow, Outcome, Reservation, estimated, marked, with_checkpoint
from decodeloop.governance.quota import Hold
from decodeloop.governance.settings import IdempotencySettings
from decodeloop.types import Usage

__all__ = ["GivenUp", "PostgresJournal", "Snapshot", "Stale"]

CONNECTIONS = 6
TIMEOUT_S = 5.0


class GivenUp(Exception):
    """Others took this gateway for dead: what it had open is charged by estimate, and its name is no more."""


class Stale(Exception):
    """It was reserved in a copy that is no more, or by a gateway that was given up."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    settled: dict[tuple[str, int], tuple[int, float]]
    open: list[tuple[str, str, tuple[Hold, ...]]]


class PostgresJournal:
    """url: postgresql://... Raises StoreUnavailable from every method where it can't be asked."""

    def __init__(self, url: str, idempotency: IdempotencySettings | None = None) -> None:
        self._idempotency = idempotency or IdempotencySettings()
        try:
            import asyncpg
        except ImportError:
            raise ImportError("PostgreSQL needs the package asyncpg: pip install 'decodeloop[stores]'") from None
        self._asyncpg, self._url = asyncpg, url
        self._pool: Any = None

    async def start(self) -> None:
        async with self._asked():
            self._pool = await self._asyncpg.create_pool(
                self._url, min_size=1, max_size=CONNECTIONS, timeout=TIMEOUT_S, command_timeout=TIMEOUT_S
            )
        await self.define(TABLES)

    async def define(self, tables: str) -> None:
        """Create what isn't there. One gateway at a time: for those at once IF NOT EXISTS alone can fail."""
        async with self.transaction() as db:
            await db.execute(f"SELECT pg_advisory_xact_lock({SCHEMA_LOCK})")
            await db.execute(tables)

    async def close(self) -> None:
        if self._pool is not None:
            self._pool.terminate()

    async def reserve(
        self, openings: Sequence[tuple[str, str, Opening]], now_s: float
    ) -> list[Stale | Reserved | None]:
        """Record reservations made by (copy, instance, opening) ("": in none, it holds nothing); None: it stands."""
        async with self.transaction() as db:
            current = str(await db.fetchval("SELECT generation FROM fence FOR SHARE"))
            names = sorted({instance for _, instance, _ in openings})
            found = await db.fetch("SELECT id FROM instances WHERE id = ANY($1) FOR SHARE", names)
            alive = {id for (id,) in found}
            results: list[Stale | Reserved | None] = []
            good: list[tuple[str, str, str, str]] = []
            for generation, instance, opening in openings:
                if generation not in ("", current) or instance not in alive:
                    results.append(Stale())
                    continue
                id, named = opening.reservation.id, opening.idempotency
                refused = None if named is None else await taken(db, named, id, now_s)
                results.append(refused)
                if refused is None:
                    good.append((id, instance, reservation_json(opening.reservation), holds_json(opening.holds)))
            if good:
                await db.execute(
                    "INSERT INTO reservations SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[])",
                    *map(list, zip(*good, strict=True)),
                )
            return results

    async def extend(self, generation: str, reservation: Reservation, holds: Sequence[Hold]) -> bool:
        """False: it isn't open any more, or was extended in a copy that is no more."""
        async with self.transaction() as db:
            if str(await db.fetchval("SELECT generation FROM fence FOR SHARE")) != generation:
                return False
            old = await db.fetchval("SELECT body FROM reservations WHERE id = $1 FOR UPDATE", reservation.id)
            if old is None:
                return False
            body = reservation_json(with_checkpoint(reservation, read_reservation(old)))
            await db.execute(
                "UPDATE reservations SET body = $2, holds = $3 WHERE id = $1", reservation.id, body, holds_json(holds)
            )
            return True

    async def recall(self, named: Idempotency, now_s: float) -> Recalled:
        async with self.transaction() as db:
            return await recall(db, named, now_s)

    async def keep(self, named: Idempotency, request_id: str, answer: bytes, now_s: float) -> None:
        async with self.transaction() as db:
            await keep(db, named, request_id, answer, now_s, room=self._idempotency.max_mb << 20)

    async def checkpoint(self, usages: Sequence[tuple[str, Usage]]) -> None:
        async with self.transaction() as db:
            told = dict(usages)
            found = await db.fetch(
                "SELECT id, body FROM reservations WHERE id = ANY($1) ORDER BY id FOR UPDATE", list(told)
            )
            changed = [(id, reservation_json(marked(read_reservation(body), told[id]))) for id, body in found]
            await db.executemany("UPDATE reservations SET body = $2 WHERE id = $1", changed)

    async def settle(self, rows: Sequence[LedgerRow]) -> list[Settled]:
        """Close reservations, all or none; see Books.settle."""
        async with self.transaction() as db:
            deleted = await db.fetch(
                "DELETE FROM reservations WHERE id = ANY($1) RETURNING id, holds", [row.request_id for row in rows]
            )
            held = {id: read_holds(text) for id, text in deleted}
            sums: defaultdict[tuple[str, int], int] = defaultdict(int)
            until: dict[tuple[str, int], float] = {}
            entries, results = [], []
            for row in rows:
                entry, real, result = await entry_of(db, row, held.pop(row.request_id, None))
                results.append(result)
                if entry is not None:
                    entries.append((*values(entry), holds_json(real)))
                    for hold in real:
                        sums[hold.counter, hold.slice] += hold.amount
                        until[hold.counter, hold.slice] = hold.until_s
            if entries:
                await db.copy_records_to_table("ledger", records=entries, columns=[*NAMES, "holds"])
                await db.executemany(ADD, [(*key, sums[key], until[key]) for key in sorted(sums)])
            free = [row.request_id for row in rows if row.outcome is Outcome.FAILED and not row.billed]
            if free:
                await db.execute("DELETE FROM idempotency WHERE request_id = ANY($1)", free)
            return results

    async def beat(
        self, instance: str, now_s: float, lease_s: float, *, known: bool
    ) -> tuple[list[LedgerRow], list[str]]:
        """Renew the lease; the estimates that are to be settled for gateways that are dead, and who those are.

        known: it was renewed before. Raises GivenUp if it was ended since.
        """
        async with self.transaction() as db:
            renewed = await db.fetchval("UPDATE instances SET seen_s = $2 WHERE id = $1 RETURNING 1", instance, now_s)
            if renewed is None and known:
                raise GivenUp
            if renewed is None:
                await db.execute("INSERT INTO instances VALUES ($1, $2)", instance, now_s)
            orphans = await db.fetch(
                "SELECT body FROM reservations WHERE instance NOT IN (SELECT id FROM instances WHERE seen_s >= $1)",
                now_s - lease_s,
            )
            dead = await db.fetch("DELETE FROM instances WHERE seen_s < $1 RETURNING id", now_s - lease_s)
            await db.execute("DELETE FROM settled WHERE until_s > 0 AND until_s < $1", now_s - lease_s)
            await db.execute("DELETE FROM idempotency WHERE at_s < $1", now_s - self._idempotency.ttl_s)
            await db.execute("DELETE FROM answers WHERE request_id NOT IN (SELECT request_id FROM idempotency)")
        return [estimated(read_reservation(body), now_s) for (body,) in orphans], [id for (id,) in dead]

    async def forget_instance(self, instance: str) -> None:
        async with self.transaction() as db:
            await db.execute("DELETE FROM instances WHERE id = $1", instance)

    @asynccontextmanager
    async def fenced(self) -> AsyncIterator[tuple[str, str, Snapshot]]:
        """The generation before, a new one, and what is settled and open in it. Until this ends nothing is newly
        reserved; if it ends by an exception there is no new generation."""
        async with self._asked(), self._pool.acquire(timeout=TIMEOUT_S) as reader, self.transaction() as db:
            previous = str(await db.fetchval("SELECT generation FROM fence FOR UPDATE"))  # once none is reserving
            generation = uuid.uuid4().hex
            await db.execute("UPDATE fence SET generation = $1", generation)
            async with reader.transaction(isolation="repeatable_read"):
                settled = await reader.fetch("SELECT counter, slice, used, until_s FROM settled")
                open_ = await reader.fetch("SELECT id, instance, holds FROM reservations")
            snapshot = Snapshot(
                {(counter, place): (used, until_s) for counter, place, used, until_s in settled},
                [(id, instance, read_holds(holds)) for id, instance, holds in open_],
            )
            yield previous, generation, snapshot

    async def generation(self) -> str:
        async with self.transaction() as db:
            return str(await db.fetchval("SELECT generation FROM fence"))

    async def charges(self, ids: Sequence[str]) -> dict[str, tuple[int, ...]]:
        """What the holds of those that are settled were charged."""
        async with self.transaction() as db:
            found = await db.fetch("SELECT request_id, holds FROM ledger WHERE request_id = ANY($1) AND entry = 0", ids)
        return {id: tuple(hold.amount for hold in read_holds(holds)) for id, holds in found}

    async def rows(self, since_s: float, until_s: float) -> list[LedgerRow]:
        async with self.transaction() as db:
            found = await db.fetch(
                f"{SELECT} WHERE ended_s >= $1 AND ended_s < $2 ORDER BY ended_s, entry", since_s, until_s
            )
        return [from_values(tuple(each)) for each in found]

    async def open(self) -> list[tuple[Reservation, tuple[Hold, ...]]]:
        async with self.transaction() as db:
            found = await db.fetch("SELECT body, holds FROM reservations ORDER BY id")
        return [(read_reservation(body), read_holds(holds)) for body, holds in found]

    async def revision(self) -> int:
        async with self.transaction() as db:
            return int(await db.fetchval("SELECT value FROM revision"))

    async def read(self) -> list[Record]:
        async with self.transaction() as db:
            return [Record(*each) for each in await db.fetch("SELECT kind, id, body FROM records ORDER BY kind, id")]

    async def put(self, record: Record) -> None:
        async with self.transaction() as db:
            await db.execute(
                """INSERT INTO records VALUES ($1, $2, $3)
                   ON CONFLICT (kind, id) DO UPDATE SET body = excluded.body""",
                record.kind,
                record.id,
                record.body,
            )
            await db.execute("UPDATE revision SET value = value + 1")

    async def remove(self, kind: str, id: str) -> bool:
        async with self.transaction() as db:
            gone = await db.fetchval("DELETE FROM records WHERE kind = $1 AND id = $2 RETURNING 1", kind, id)
            await db.execute("UPDATE revision SET value = value + 1")
            return gone is not None

    @asynccontextmanager
    async def transaction(self, isolation: str = "read_committed") -> AsyncIterator[Any]:
        if self._pool is None:
            raise StoreUnavailable("PostgreSQL: not open")
        async with (
            self._asked(),
            self._pool.acquire(timeout=TIMEOUT_S) as db,
            db.transaction(isolation=isolation),
        ):
            yield db

    @asynccontextmanager
    async def _asked(self) -> AsyncIterator[None]:
        try:
            yield
        except (
            TimeoutError,
            OSError,
            self._asyncpg.PostgresError,
            self._asyncpg.InterfaceError,
            self._asyncpg.InternalClientError,  # of a connection whose server died while it was asked
        ) as error:
            raise StoreUnavailable(f"PostgreSQL: {error or type(error).__name__}") from error
