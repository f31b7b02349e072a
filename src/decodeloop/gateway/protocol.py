"""uvicorn's HTTP/1.1 protocol, with the bounds it lacks: on a request's head, and on clients that stop reading."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from decodeloop.gateway.errors import error_body
from decodeloop.gateway.settings import Limits
from decodeloop.types import RequestRefused

__all__ = ["BoundedHttp"]


class BoundedHttp(HttpToolsProtocol):
    """A head that is too long or too slow, and what is no HTTP at all, get an error in the shape of all others."""

    def __init__(self, limits: Limits, **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._limits = limits
        self._in_head = True
        self._head_bytes = 0
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._in_head:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > self._limits.max_header_bytes:
            self._refuse_head(431, self._too_large())

    def on_message_begin(self) -> None:
        self._expect_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head, self._head_bytes = False, 0
        if self._head_timer is not None:
            self._head_timer.cancel()
        if len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > self._limits.max_header_bytes:
            self._refuse_head(431, self._too_large())
        else:
            super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(self._limits.stall_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse_head(400, msg)

    def _expect_head(self) -> None:
        self._in_head = True
        self._stop_timers()
        self._head_timer = self.loop.call_later(self._limits.header_timeout_s, self._head_late)

    def _head_late(self) -> None:
        self._refuse_head(408, "the request's head did not arrive in time")

    def _too_large(self) -> str:
        return f"the request's head is larger than {self._limits.max_header_bytes} bytes"

    def _refuse_head(self, status: int, message: str) -> None:
        if self.transport.is_closing():
            return
        if self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete:
            self.transport.close()  # an answer to an earlier request is on the wire: nothing may be written into it
            return
        body = error_body(RequestRefused(message, status=status))
        head = [
            STATUS_LINE[status],
            b"content-type: application/json\r\nconnection: close\r\ncontent-length: ",
            str(len(body)).encode(),
            b"\r\n\r\n",
        ]
        self.transport.write(b"".join([*head, body]))
        self.transport.close()

    def _stop_timers(self) -> None:
        for timer in (self._head_timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
