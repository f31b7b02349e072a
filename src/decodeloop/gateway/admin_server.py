"""The admin API on a port of its own, beside the gateway on the same event loop."""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, cast

import uvicorn

from decodeloop.gateway.admin import LIMITS, AdminApi
from decodeloop.gateway.protocol import BoundedHttp
from decodeloop.governance.settings import AdminSettings

__all__ = ["AdminServer"]


class _QuietServer(uvicorn.Server):
    """Signals are the gateway's."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


class AdminServer:
    def __init__(self, api: AdminApi, settings: AdminSettings) -> None:
        self._server = _QuietServer(
            uvicorn.Config(
                cast(Any, api),
                host=settings.host,
                port=settings.port,
                http=cast(Any, partial(BoundedHttp, LIMITS)),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=5,
            )
        )
        self._settings = settings
        self._task: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        return int(self._server.servers[0].sockets[0].getsockname()[1])

    async def start(self) -> None:
        """Raises OSError where the port is taken."""
        self._task = asyncio.create_task(self._serve())
        while not self._server.started:
            if self._task.done():
                raise OSError(f"the admin API can't listen at {self._settings.host} port {self._settings.port}")
            await asyncio.sleep(0.01)

    async def _serve(self) -> None:
        try:
            await self._server.serve()
        except SystemExit:  # uvicorn's word for a port that is taken
            return

    async def close(self) -> None:
        self._server.should_exit = True
        if self._task is not None:
            await self._task
