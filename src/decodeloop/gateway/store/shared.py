"""Books of several gateways: counters in Redis, everything durable in PostgreSQL.

A reservation is counted in Redis, then recorded in PostgreSQL, and stands only when both are done; a settlement is
entered in PostgreSQL, then counted in Redis. Whatever dies in between, PostgreSQL knows what is owed: Redis is copied
from it when it has been restarted, and corrected from it when a gateway has died.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from decodeloop.gateway.store import Idempotency, Opening, Recalled, Record, Refusal, Reserved, StoreUnavailable
from decodeloop.gateway.store.batches import Batches
from decodeloop.gateway.store.postgres import GivenUp, PostgresJournal, Stale
from decodeloop.gateway.store.redis_counters import Rebuilding, RedisCounters
from decodeloop.governance.ledger import LedgerRow, Outcome, Reservation
from decodeloop.governance.quota import Hold
from decodeloop.governance.settings import IdempotencySettings
from decodeloop.types import Usage

__all__ = ["SharedBooks"]

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 10
RETRY_S, READ_S = 0.25, 2.0
TOGETHER = 200  # settlements in a transaction


class _Current(Exception):
    """The copy is good already."""


class SharedBooks:
    """Implements Books and Records. instance, clock, lease_s: as for SqliteBooks."""

    def __init__(
        self,
        postgres: str,
        redis: str,
        *,
        instance: str,
        clock: Callable[[], float],
        lease_s: float = 15.0,
        idempotency: IdempotencySettings | None = None,
    ) -> None:
        # Open to those who keep something else in the database.
        self.journal = PostgresJournal(postgres, idempotency or IdempotencySettings())
        self._counters = RedisCounters(redis)
        self._instance, self._clock, self._lease_s = instance, clock, lease_s
        self._reserving = Batches(self._record)
        self._settling: list[LedgerRow] = []
        self._owed: dict[str, tuple[int, ...]] = {}  # what Redis has yet to be told of settlements
        self._known = False  # the instance has a lease
        self._copying, self._work, self._idle = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.journal.start()
        self._reserving.start()
        self._tasks = [asyncio.create_task(self._settles()), asyncio.create_task(self._beats())]
        await self._beat_once()

    async def close(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._lease_s):
                await self.flush()
        for task in self._tasks:
            task.cancel()
        self._reserving.stop()
        with suppress(StoreUnavailable):
            await self.journal.forget_instance(self._instance)
        await self.journal.close()
        await self._counters.close()

    async def reserve(self, opening: Opening) -> Reserved:
        id = opening.reservation.id
        for _ in range(ATTEMPTS):
            generation, instance = "", self._instance
            used: tuple[int, ...] = ()
            if opening.holds:
                try:
                    reserve = partial(self._counters.reserve, id, instance, opening.holds)
                    generation, place, used = await self._counted(reserve)
                except StoreUnavailable:
                    self._owe(id, ())  # it may have been counted all the same
                    raise
                if place >= 0 and await self._settled_first():
                    continue
                if place >= 0:
                    return Reserved(used, Refusal.LIMIT, place)
            try:
                recorded = await self._reserving.submit((generation, instance, opening))
            except StoreUnavailable:  # or recorded: a settlement of nothing makes both sure
                self._owe(id, ())
                self.settle(replace(opening.reservation.row, ended_s=self._clock(), outcome=Outcome.FAILED))
                raise
            if recorded is None:
                return Reserved(used)
            await self._release(id)
            if isinstance(recorded, Reserved):
                return recorded
            await self._beat_once()
            await self._copy()
        raise StoreUnavailable("the counters change too often")

    async def extend(self, reservation: Reservation, holds: tuple[Hold, ...]) -> Reserved:
        if not holds:
            extended = await self.journal.extend("", reservation, holds)
            return Reserved(refusal=None if extended else Refusal.LIMIT)
        reserve = partial(self._counters.reserve, reservation.id, self._instance, holds)
        generation, place, used = await self._counted(reserve)
        if place >= 0:
            return Reserved(used, Refusal.LIMIT, place)
        if not await self.journal.extend(generation, reservation, holds):
            return Reserved(used, Refusal.LIMIT)  # what Redis holds too much is released with the rest
        return Reserved(used)

    async def recall(self, named: Idempotency) -> Recalled:
        return await self.journal.recall(named, self._clock())

    def keep(self, named: Idempotency, request_id: str, answer: bytes) -> None:
        self._try(self.journal.keep(named, request_id, answer, self._clock()))

    def checkpoint(self, usages: Sequence[tuple[str, Usage]]) -> None:
        self._try(self.journal.checkpoint(usages))

    def _try(self, work: Coroutine[Any, Any, None]) -> None:
        """Behind everything else; where the store can't be asked, nothing."""

        async def trying() -> None:
            with suppress(StoreUnavailable):
                await work

        task = asyncio.create_task(trying())
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    def settle(self, row: LedgerRow) -> None:
        self._settling.append(row)
        self._wake()

    async def flush(self) -> None:
        await self._idle.wait()

    async def rows(self, since_s: float, until_s: float) -> Sequence[LedgerRow]:
        await self.settled()
        return await self.journal.rows(since_s, until_s)

    async def open(self) -> Sequence[tuple[Reservation, tuple[Hold, ...]]]:
        await self.settled()
        return await self.journal.open()

    async def used(self, counters: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        return await self._counted(lambda: self._counters.used(counters))

    async def rebuild(self) -> None:
        """Compute all counters anew."""
        async with self._copying, self.journal.fenced() as (_, generation, snapshot):
            await self._counters.load(generation, snapshot.settled, snapshot.open)

    async def revision(self) -> int:
        return await self.journal.revision()

    async def read(self) -> Sequence[Record]:
        return await self.journal.read()

    async def put(self, record: Record) -> None:
        await self.journal.put(record)

    async def remove(self, kind: str, id: str) -> bool:
        return await self.journal.remove(kind, id)

    async def settled(self) -> None:
        """Until what was queued is entered, or for as long as a reader may wait."""
        with suppress(TimeoutError):
            async with asyncio.timeout(READ_S):
                await self.flush()

    async def _settled_first(self) -> bool:
        """Whether there were settlements of ours that a refusal should not come before, and they are done now."""
        if self._idle.is_set():
            return False
        await self.settled()
        return self._idle.is_set()

    async def _record(self, openings: Sequence[tuple[str, str, Opening]]) -> Sequence[Stale | Reserved | None]:
        return await self.journal.reserve(openings, self._clock())

    async def _counted(self, ask: Callable[[], Awaitable[T]]) -> T:
        for _ in range(ATTEMPTS):
            try:
                return await ask()
            except Rebuilding:
                await self._copy()
        raise StoreUnavailable("the counters are being copied")

    async def _copy(self) -> None:
        """Give Redis a copy, unless it has the one that holds: of all gateways that see it missing, one makes it."""
        async with self._copying:
            with suppress(_Current):
                current = await self.journal.generation()
                if current and await self._counters.generation() == current:
                    return
                async with self.journal.fenced() as (previous, generation, snapshot):
                    if previous != current:
                        raise _Current  # another made one meanwhile
                    await self._counters.load(generation, snapshot.settled, snapshot.open)
                    log.warning("the counters were copied: %d reservations are open", len(snapshot.open))

    async def _release(self, id: str) -> None:
        with suppress(Rebuilding):
            try:
                await self._counters.settle(id, ())
            except StoreUnavailable:
                self._owe(id, ())
                raise

    def _owe(self, id: str, amounts: tuple[int, ...]) -> None:
        self._owed[id] = amounts
        self._wake()

    def _wake(self) -> None:
        self._idle.clear()
        self._work.set()

    async def _settles(self) -> None:
        """Enter settlements, then count them; what can't be done now is done later, in that order."""
        while True:
            self._work.clear()
            try:
                await self._enter()
                await self._pay()
            except Exception as error:  # whatever it is, what is owed stays owed
                log.warning("%d settlements wait: %s", len(self._settling) + len(self._owed), error)
                await asyncio.sleep(RETRY_S)
                continue
            if not self._settling and not self._owed:
                self._idle.set()
                await self._work.wait()

    async def _enter(self) -> None:
        while self._settling:
            taken = self._settling[:TOGETHER]
            batch = {row.request_id: row for row in reversed(taken)}  # of one request the first counts
            settled = await self.journal.settle(list(batch.values()))
            del self._settling[: len(taken)]
            for id, result in zip(batch, settled, strict=True):
                if result.amounts is not None:
                    self._owed[id] = result.amounts
                if result.differences:
                    with suppress(Rebuilding):
                        await self._counters.adjust(result.generation, result.differences)

    async def _pay(self) -> None:
        for id, amounts in list(self._owed.items()):
            await self._counted(lambda id=id, amounts=amounts: self._counters.settle(id, amounts))  # type: ignore[misc]
            if self._owed.get(id) == amounts:
                del self._owed[id]

    async def _beats(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._beat_once()
            except Exception as error:  # the next one may do better
                log.warning("%s", error)

    async def _beat_once(self) -> None:
        """Say that this gateway lives, and charge for the dead."""
        now_s = self._clock()
        try:
            estimates, dead = await self.journal.beat(self._instance, now_s, self._lease_s, known=self._known)
        except GivenUp:  # a new name: others may still be clearing up after the old one
            log.warning("this gateway was taken for dead")
            self._instance = uuid.uuid4().hex[:12]
            estimates, dead = await self.journal.beat(self._instance, now_s, self._lease_s, known=False)
        self._known = True
        if estimates:
            log.warning("%d requests of gateways that died are charged by estimate", len(estimates))
        for row in estimates:
            self.settle(row)
        estimated = {row.request_id for row in estimates}
        for instance in dead:
            held = [id for id in await self._counters.held_by(instance) if id not in estimated]
            charges = await self.journal.charges(held)
            for id in held:
                settle = partial(self._counters.settle, id, charges.get(id, ()), instance)
                await self._counted(settle)
