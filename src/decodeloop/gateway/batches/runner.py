"""Answers the lines of batches, one after another, while others don't need the machines; goes on after a restart."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import orjson

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.batches import BatchSettings
from decodeloop.gateway.batches.files import FileStore, lines_of, write_whole
from decodeloop.gateway.batches.records import Batch, Line, read_lines
from decodeloop.gateway.errors import error_object, internal_error
from decodeloop.gateway.exchange import Captured, Exchange, inner_request
from decodeloop.gateway.watch import Watch
from decodeloop.types import RequestRefused

__all__ = ["BatchRunner", "Handlers"]

log = logging.getLogger(__name__)

LOOK_S = 0.05  # between looks at whether others are done
PAUSE_S = (0.2, 1.0, 5.0, 20.0)  # before a line is tried again that found no room
BUSY = (429, 502, 503, 504)

Handlers = Mapping[str, Callable[[Exchange], Awaitable[None]]]


class BatchRunner:
    """handlers: by path. clock: Unix seconds."""

    def __init__(
        self,
        settings: BatchSettings,
        files: FileStore,
        handlers: Handlers,
        admission: Admission,
        clock: Callable[[], float],
        *,
        watch: Watch,
    ) -> None:
        self._watch = watch
        self._settings, self._files, self._handlers = settings, files, handlers
        self._admission, self._clock = admission, clock
        self._directory = Path(settings.directory or ".") / "batches"
        self._batches: dict[str, Batch] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._room = asyncio.Semaphore(settings.at_once)
        self._in_flight = 0

    async def start(self) -> None:
        """Batches that a former process left are gone on with."""
        self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        for path in self._directory.glob("batch_*.json"):
            try:
                batch = msgspec.json.decode(path.read_bytes(), type=Batch)
            except (OSError, msgspec.MsgspecError) as error:
                log.warning("%s can't be read: %s", path.name, error)
                continue
            self._batches[batch.id] = batch
            if not batch.is_over:
                self._begin(batch)

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    def create(self, batch: Batch) -> Batch:
        """Raises RequestRefused when its organization has too many that aren't over."""
        open_now = sum(not each.is_over for each in self.of(batch.identity.organization))
        if open_now >= self._settings.max_open:
            raise RequestRefused(f"{open_now} batches are not over yet", status=429, code="too_many_batches")
        self._set(batch)
        self._begin(batch)
        return batch

    def find(self, id: str, organization: str) -> Batch:
        batch = self._batches.get(id)
        if batch is None or batch.identity.organization != organization:
            raise RequestRefused(f"no batch {id[:60]!r}", status=404, param="batch_id", code="batch_not_found")
        return batch

    def of(self, organization: str) -> list[Batch]:
        """Latest first."""
        mine = [batch for batch in self._batches.values() if batch.identity.organization == organization]
        return sorted(mine, key=lambda batch: (-batch.created_s, batch.id))

    def cancel(self, id: str, organization: str) -> Batch:
        batch = self.find(id, organization)
        if not batch.is_over:
            self._move(id, "cancelling")
            self._tasks[id].cancel()
        return self._batches[id]

    def _begin(self, batch: Batch) -> None:
        task = asyncio.create_task(self._run(batch.id))
        self._tasks[batch.id] = task
        task.add_done_callback(lambda _: self._tasks.pop(batch.id, None))

    async def _run(self, id: str) -> None:
        try:
            if self._batches[id].status == "cancelling":
                self._move(id, "cancelled")
                return
            async with asyncio.timeout_at(self._until(id)):
                await self._answer_all(id)
        except TimeoutError:
            self._move(id, "expired")
        except asyncio.CancelledError:
            if self._batches[id].status != "cancelling":
                raise  # this process ends; the batch doesn't
            self._move(id, "cancelled")
        except Exception:
            log.exception("batch %s failed", id)
            self._move(id, "failed")

    def _until(self, id: str) -> float:
        return asyncio.get_running_loop().time() + max(0.0, self._batches[id].expires_s - self._clock())

    async def _answer_all(self, id: str) -> None:
        batch = self._batches[id]
        data = await asyncio.to_thread(self._files.path(batch.input_file).read_bytes)
        lines, errors = await asyncio.to_thread(read_lines, data, batch.endpoint, self._settings.max_lines)
        if errors:
            self._set(replace(batch, errors=tuple(errors)))
            self._move(id, "failed")
            return
        done = await asyncio.to_thread(self._done, batch)
        failed = sum(done.values())
        self._set(replace(batch, total=len(lines), completed=len(done) - failed, failed=failed))
        self._move(id, "in_progress")
        async with asyncio.TaskGroup() as group:
            for line in lines:
                if line.custom_id not in done:
                    await self._room.acquire()
                    group.create_task(self._answer(id, line))
        self._move(id, "finalizing")
        self._move(id, "completed")

    def _done(self, batch: Batch) -> dict[str, bool]:
        """Lines that were answered already, and whether they failed. What a crash cut off is cut away."""
        found: dict[str, bool] = {}
        for id, failed in ((batch.output_file, False), (batch.error_file, True)):
            path = self._files.path(id)
            rows = lines_of(path)
            write_whole(path, b"".join(row + b"\n" for row in rows))
            found.update({orjson.loads(row)["custom_id"]: failed for row in rows})
        return found

    async def _answer(self, id: str, line: Line) -> None:
        """Ends holding no room, whatever happens."""
        try:
            status, body = await self._asked(self._batches[id], line)
        finally:
            self._room.release()
        row = {
            "id": f"batch_req_{uuid.uuid4().hex}",
            "custom_id": line.custom_id,
            "response": {"status_code": status, "request_id": uuid.uuid4().hex, "body": body},
            "error": None,
        }
        batch, failed = self._batches[id], status != 200
        with self._files.path(batch.error_file if failed else batch.output_file).open("ab") as out:
            out.write(orjson.dumps(row) + b"\n")
        self._batches[id] = replace(batch, completed=batch.completed + (not failed), failed=batch.failed + failed)

    async def _asked(self, batch: Batch, line: Line) -> tuple[int, Any]:
        for pause_s in (*PAUSE_S, None):
            await self._others()
            self._in_flight += 1
            exchange, told = _exchange(batch, line), None
            try:
                await self._handlers[batch.endpoint](exchange)
                return 200, orjson.loads(exchange.captured)
            except RequestRefused as refused:
                told = refused
                exchange.failed(refused)
            except Exception:
                log.exception("a line of batch %s failed", batch.id)
                told = internal_error(exchange.request_id)
            finally:
                self._in_flight -= 1
                if exchange.trail is not None:
                    exchange.trail.batch = batch.id
                self._watch.ended(exchange, told.status if told is not None else exchange.status or 499)
            if told.status not in BUSY or told.code == "insufficient_quota" or pause_s is None:
                return told.status, error_object(told)
            await asyncio.sleep(pause_s)
        raise AssertionError("the last pause returns")

    async def _others(self) -> None:
        """Wait while others are being answered."""
        while self._admission.in_flight - self._in_flight > self._settings.yield_above:
            await asyncio.sleep(LOOK_S)

    def _move(self, id: str, status: str) -> None:
        batch = self._batches[id]
        if batch.status != status:
            self._set(replace(batch, status=status, moments={**batch.moments, status: self._clock()}))

    def _set(self, batch: Batch) -> None:
        self._batches[batch.id] = batch
        try:
            write_whole(self._directory / f"{batch.id}.json", msgspec.json.encode(batch))
        except OSError as error:  # it goes on; a restart would not know how far it was
            log.warning("the state of batch %s can't be written: %s", batch.id, error)


def _exchange(batch: Batch, line: Line) -> Captured:
    """As its owner would ask, at the priority of batches."""
    own = line.body.get("decodeloop") or {}
    body = {**line.body, "decodeloop": {"priority": "batch", **own} if isinstance(own, dict) else own}
    exchange = inner_request(batch.endpoint, orjson.dumps(body))
    exchange.vouched = batch.identity
    return exchange
