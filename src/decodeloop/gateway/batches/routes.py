"""/v1/files and /v1/batches."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import orjson
from msgspec import Struct
from python_multipart.multipart import MultipartParser, parse_options_header

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.batches import BatchSettings
from decodeloop.gateway.batches.files import FileStore
from decodeloop.gateway.batches.records import ENDPOINTS, Batch
from decodeloop.gateway.batches.runner import BatchRunner, Handlers
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.watch import Watch
from decodeloop.gateway.wire.body import checked, read_object
from decodeloop.types import Identity, RequestRefused

__all__ = ["BatchRoutes", "open_batches"]

Handler = Callable[[Exchange], Awaitable[None]]

MAX_PAGE = 100
MAX_METADATA = 16


class _Ask(Struct, forbid_unknown_fields=True):
    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] = {}


class BatchRoutes:
    def __init__(
        self,
        settings: BatchSettings,
        files: FileStore,
        runner: BatchRunner,
        authenticator: Authenticator,
        limits: Limits,
    ) -> None:
        self._settings, self._files, self._runner = settings, files, runner
        self._authenticator, self._limits = authenticator, limits

    def routes(self) -> list[tuple[str, str, Handler]]:
        return [
            ("POST", "/v1/files", self.upload),
            ("GET", "/v1/files", self.files),
            ("GET", "/v1/files/{file}", self.file),
            ("DELETE", "/v1/files/{file}", self.delete),
            ("GET", "/v1/files/{file}/content", self.content),
            ("POST", "/v1/batches", self.create),
            ("GET", "/v1/batches", self.batches),
            ("GET", "/v1/batches/{batch}", self.batch),
            ("POST", "/v1/batches/{batch}/cancel", self.cancel),
        ]

    async def upload(self, exchange: Exchange) -> None:
        identity = self._authenticator.identify(exchange)
        body = await exchange.read(self._settings.max_file_mb << 20, self._limits)
        fields, filename, data = await asyncio.to_thread(_form, exchange.header("content-type") or "", body)
        if fields.get("purpose") != "batch":
            raise RequestRefused("purpose must be batch", param="purpose")
        stored = await asyncio.to_thread(
            self._files.add,
            data,
            organization=identity.organization,
            filename=filename,
            purpose="batch",
            now_s=time.time(),
        )
        await _json(exchange, stored.shown())

    async def files(self, exchange: Exchange) -> None:
        identity = self._authenticator.identify(exchange)
        found = await asyncio.to_thread(lambda: list(self._files.of(identity.organization)))
        await _json(exchange, {"object": "list", "data": [each.shown() for each in found], "has_more": False})

    async def file(self, exchange: Exchange) -> None:
        await _json(exchange, self._files.find(exchange.path_param("file"), self._organization(exchange)).shown())

    async def content(self, exchange: Exchange) -> None:
        stored = self._files.find(exchange.path_param("file"), self._organization(exchange))
        data = await asyncio.to_thread(self._files.path(stored.id).read_bytes)
        await exchange.respond(200, data, b"application/octet-stream")

    async def delete(self, exchange: Exchange) -> None:
        organization, id = self._organization(exchange), exchange.path_param("file")
        busy = [each.id for each in self._runner.of(organization) if each.input_file == id and not each.is_over]
        if busy:
            raise RequestRefused(f"batch {busy[0]} still reads this file", status=409, code="file_in_use")
        self._files.remove(id, organization)
        await _json(exchange, {"id": id, "object": "file", "deleted": True})

    async def create(self, exchange: Exchange) -> None:
        identity = self._authenticator.identify(exchange)
        raw = await exchange.read_json(self._limits)
        ask: _Ask = checked(read_object(raw, max_depth=self._limits.max_json_depth), _Ask)
        if ask.endpoint not in ENDPOINTS:
            raise RequestRefused(f"endpoint must be one of {', '.join(ENDPOINTS)}", param="endpoint")
        if ask.completion_window != "24h":
            raise RequestRefused("completion_window must be 24h", param="completion_window")
        if len(ask.metadata) > MAX_METADATA:
            raise RequestRefused(f"metadata has at most {MAX_METADATA} keys", param="metadata")
        self._files.find(ask.input_file_id, identity.organization)
        batch = await asyncio.to_thread(self._opened, ask, identity)
        await _json(exchange, self._runner.create(batch).shown())

    async def batches(self, exchange: Exchange) -> None:
        found = self._runner.of(self._organization(exchange))
        after, limit = exchange.query("after"), _limit(exchange.query("limit"))
        places = [place for place, batch in enumerate(found) if batch.id == after]
        page = found[places[0] + 1 if places else 0 :][: limit + 1]
        data = [batch.shown() for batch in page[:limit]]
        ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {"first_id": None, "last_id": None}
        await _json(exchange, {"object": "list", "data": data, **ends, "has_more": len(page) > limit})

    async def batch(self, exchange: Exchange) -> None:
        await _json(exchange, self._runner.find(exchange.path_param("batch"), self._organization(exchange)).shown())

    async def cancel(self, exchange: Exchange) -> None:
        await _json(exchange, self._runner.cancel(exchange.path_param("batch"), self._organization(exchange)).shown())

    def _organization(self, exchange: Exchange) -> str:
        return self._authenticator.identify(exchange).organization

    def _opened(self, ask: _Ask, identity: Identity) -> Batch:
        now_s = time.time()
        out, err = (
            self._files.add(
                b"", organization=identity.organization, filename=name, purpose="batch_output", now_s=now_s
            ).id
            for name in ("output.jsonl", "errors.jsonl")
        )
        return Batch(
            id=f"batch_{uuid.uuid4().hex}",
            identity=identity,
            endpoint=ask.endpoint,
            input_file=ask.input_file_id,
            output_file=out,
            error_file=err,
            status="validating",
            created_s=now_s,
            expires_s=now_s + self._settings.window_s,
            metadata=ask.metadata,
        )


def open_batches(
    settings: BatchSettings,
    handlers: Handlers,
    admission: Admission,
    authenticator: Authenticator,
    limits: Limits,
    *,
    watch: Watch,
) -> tuple[BatchRunner, BatchRoutes]:
    """handlers: by endpoint. The runner is started and closed by the caller."""
    assert settings.directory is not None, "batches need somewhere to be kept"
    files = FileStore(Path(settings.directory), settings.max_files)
    runner = BatchRunner(settings, files, handlers, admission, time.time, watch=watch)
    return runner, BatchRoutes(settings, files, runner, authenticator, limits)


def _form(content_type: str, body: bytes) -> tuple[dict[str, str], str, bytes]:
    """The fields, the file's name and its bytes, of a multipart form."""
    kind, options = parse_options_header(content_type)
    if kind != b"multipart/form-data" or b"boundary" not in options:
        raise RequestRefused("files are sent as multipart/form-data", status=415, param="content-type")
    parts: list[tuple[dict[bytes, bytes], bytearray]] = []
    header: list[bytearray] = [bytearray(), bytearray()]

    def begin() -> None:
        parts.append(({}, bytearray()))

    def end_header() -> None:
        parts[-1][0][bytes(header[0]).lower()] = bytes(header[1])
        header[0], header[1] = bytearray(), bytearray()

    parser = MultipartParser(
        options[b"boundary"],
        {
            "on_part_begin": begin,
            "on_header_field": lambda data, start, end: header[0].extend(data[start:end]),
            "on_header_value": lambda data, start, end: header[1].extend(data[start:end]),
            "on_header_end": end_header,
            "on_part_data": lambda data, start, end: parts[-1][1].extend(data[start:end]),
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except ValueError as error:
        raise RequestRefused(f"the form can't be read: {error}") from None
    return _sorted_parts(parts)


def _sorted_parts(parts: list[tuple[dict[bytes, bytes], bytearray]]) -> tuple[dict[str, str], str, bytes]:
    fields: dict[str, str] = {}
    file: tuple[str, bytes] | None = None
    for headers, data in parts:
        _, options = parse_options_header(headers.get(b"content-disposition", b""))
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if name == "file":
            file = options.get(b"filename", b"file").decode("utf-8", "replace")[:255], bytes(data)
        else:
            fields[name] = data.decode("utf-8", "replace")
    if file is None:
        raise RequestRefused("the form has no part called file", param="file")
    return fields, *file


def _limit(text: str | None) -> int:
    if text is None:
        return 20
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PAGE:
        raise RequestRefused(f"limit must be 1 to {MAX_PAGE}", param="limit")
    return int(text)


async def _json(exchange: Exchange, value: Mapping[str, Any]) -> None:
    await exchange.respond(200, orjson.dumps(value))
