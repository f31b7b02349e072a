"""Books and records in one SQLite file (WAL): all tables change in one transaction, so they always agree.

One thread owns the connection. It takes whatever is queued and commits it as one transaction: under load a commit is
shared by many requests.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from decodeloop.gateway.store import Idempotency, Opening, Recalled, Record, Reserved, StoreUnavailable
from decodeloop.gateway.store import sqlite_answers as answers
from decodeloop.gateway.store import sqlite_steps as steps
from decodeloop.gateway.store.sqlite_together import Reserve, Settle, Step, together
from decodeloop.governance.ledger import LedgerRow, Reservation
from decodeloop.governance.quota import Hold
from decodeloop.governance.settings import IdempotencySettings
from decodeloop.types import Usage

__all__ = ["SqliteBooks"]

log = logging.getLogger(__name__)

T = TypeVar("T")

MOST_TOGETHER = 512  # steps in a transaction
PATIENCE_S = 0.01
BUSY_S = 5.0  # for another process's transaction


@dataclass(slots=True)
class _Task:
    """A step and who waits for it. done: told its outcome on the event loop; None: nobody waits."""

    step: Step
    done: asyncio.Future[Any] | None = None
    unwritten: LedgerRow | None = None  # what is lost where it fails
    result: Any = None
    error: Exception | None = None


class SqliteBooks:
    """Implements Books and Records. path: a file, which any number of processes on this machine may share.

    instance: this gateway's name, new with every start. lease_s: a gateway that has not been heard of for so long is
    dead, and its open requests are charged. clock: Unix seconds. full_sync: survive loss of power, not only of the
    process, for a disk write a transaction.
    """

    def __init__(
        self,
        path: str,
        *,
        instance: str,
        clock: Callable[[], float],
        lease_s: float = 15.0,
        full_sync: bool = False,
        idempotency: IdempotencySettings | None = None,
    ) -> None:
        self._path, self._instance, self._clock = path, instance, clock
        self._lease_s, self._full_sync = lease_s, full_sync
        self._idempotency = idempotency or IdempotencySettings()
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="decodeloop-books", daemon=True)
        self._beat: asyncio.Task[None] | None = None
        self._unwritten: list[LedgerRow] = []  # settled while the file could not be written

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        await self._do(lambda connection: None)
        await self._beat_once()
        self._beat = asyncio.create_task(self._beating())

    async def close(self) -> None:
        if self._beat is not None:
            self._beat.cancel()
        with suppress(StoreUnavailable):  # then its lease ends by itself
            await self._do(lambda connection: steps.forget_instance(connection, self._instance))
        self._tasks.put(None)
        await asyncio.to_thread(self._thread.join)

    async def reserve(self, opening: Opening) -> Reserved:
        now_s = self._clock()
        return await self._do(Reserve(opening, self._instance, now_s))

    async def extend(self, reservation: Reservation, holds: tuple[Hold, ...]) -> Reserved:
        return await self._do(lambda connection: steps.extend(connection, reservation, holds))

    async def recall(self, named: Idempotency) -> Recalled:
        now_s = self._clock()
        return await self._do(lambda connection: answers.recall(connection, named, now_s))

    def keep(self, named: Idempotency, request_id: str, answer: bytes) -> None:
        now_s, room = self._clock(), self._idempotency.max_mb << 20
        self._tasks.put(_Task(lambda connection: answers.keep(connection, named, request_id, answer, now_s, room=room)))

    def checkpoint(self, usages: Sequence[tuple[str, Usage]]) -> None:
        self._tasks.put(_Task(lambda connection: steps.checkpoint(connection, usages)))

    def settle(self, row: LedgerRow) -> None:
        self._tasks.put(_Task(Settle(row), unwritten=row))

    async def flush(self) -> None:
        await self._do(lambda connection: None)

    async def rows(self, since_s: float, until_s: float) -> Sequence[LedgerRow]:
        return await self._do(lambda connection: steps.rows(connection, since_s, until_s))

    async def open(self) -> Sequence[tuple[Reservation, tuple[Hold, ...]]]:
        return await self._do(steps.open_reservations)

    async def used(self, counters: Sequence[tuple[str, int]]) -> tuple[int, ...]:
        return await self._do(lambda connection: steps.used(connection, counters))

    async def rebuild(self) -> None:
        """Compute all counters anew from the ledger and the open reservations."""
        await self._do(steps.rebuild)

    async def revision(self) -> int:
        return await self._do(steps.revision)

    async def read(self) -> Sequence[Record]:
        return await self._do(steps.records)

    async def put(self, record: Record) -> None:
        await self._do(lambda connection: steps.put_record(connection, record))

    async def remove(self, kind: str, id: str) -> bool:
        return await self._do(lambda connection: steps.remove_record(connection, kind, id))

    async def do(self, step: Callable[[sqlite3.Connection], T]) -> T:
        """A step of somebody who keeps something else in the file."""
        return await self._do(step)

    async def _do(self, step: Callable[[sqlite3.Connection], T]) -> T:
        if not self._thread.is_alive():
            raise StoreUnavailable("the books are closed")
        done: asyncio.Future[T] = self._loop.create_future()
        self._tasks.put(_Task(step, done))
        return await done

    async def _beating(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            try:
                await self._beat_once()
            except StoreUnavailable as error:
                log.warning("%s: %s", self._path, error)

    async def _beat_once(self) -> None:
        """Say that this gateway lives, write what could not be, charge for the dead."""
        now_s = self._clock()
        unwritten, self._unwritten = self._unwritten, []
        for row in unwritten:
            self.settle(row)
        ttl_s = self._idempotency.ttl_s
        charged = await self._do(
            lambda connection: steps.beat(connection, self._instance, now_s, self._lease_s, remembered_s=ttl_s)
        )
        if charged:
            log.warning("%d requests of gateways that died are charged by estimate", charged)

    def _run(self) -> None:
        connection: sqlite3.Connection | None = None
        while True:
            batch, last = self._batch()
            if connection is None:
                connection = self._connected(batch)
            if connection is not None and batch:
                _commit(connection, batch)
            self._tell(batch)
            if last:
                break
        if connection is not None:
            connection.close()

    def _tell(self, batch: Sequence[_Task]) -> None:
        """One call to the event loop for all who wait."""
        self._unwritten.extend([task.unwritten for task in batch if task.error and task.unwritten])
        waited = [task for task in batch if task.done is not None]
        if waited:
            with suppress(RuntimeError):  # a loop that has ended: nobody waits any more
                self._loop.call_soon_threadsafe(_deliver, waited)

    def _batch(self) -> tuple[list[_Task], bool]:
        """What is queued. Settlements wait a little for company: a transaction costs more than what is in it."""
        batch = []
        task = self._tasks.get()
        while task is not None:
            batch.append(task)
            if len(batch) == MOST_TOGETHER:
                return batch, False
            is_patient = task.unwritten is not None
            try:
                task = self._tasks.get(timeout=PATIENCE_S) if is_patient else self._tasks.get_nowait()
            except queue.Empty:
                return batch, False
        return batch, True

    def _connected(self, batch: Sequence[_Task]) -> sqlite3.Connection | None:
        try:
            connection = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, cached_statements=64)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(f"PRAGMA synchronous={'FULL' if self._full_sync else 'NORMAL'}")
            steps.create(connection)
        except sqlite3.Error as error:
            for task in batch:
                task.error = StoreUnavailable(f"can't open {self._path}: {error}")
            return None
        return connection


def _commit(connection: sqlite3.Connection, batch: Sequence[_Task]) -> None:
    """All steps in one transaction; where one fails, each in its own."""
    try:
        results = _transaction(connection, [task.step for task in batch])
    except Exception as error:
        if len(batch) == 1:
            batch[0].error = StoreUnavailable(str(error)) if isinstance(error, sqlite3.Error) else error
            return
        for each in batch:
            _commit(connection, [each])
        return
    for task, result in zip(batch, results, strict=True):
        task.result = result


def _transaction(connection: sqlite3.Connection, each: Sequence[Step]) -> list[Any]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        results = together(connection, each)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return results


def _deliver(waited: Sequence[_Task]) -> None:
    for task in waited:
        if task.done is None or task.done.done():  # whoever waited was cancelled
            continue
        if task.error is None:
            task.done.set_result(task.result)
        else:
            task.done.set_exception(task.error)
