"""The gateway on a socket: uvicorn with uvloop and httptools."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import uvicorn

from decodeloop.gateway.app import Gateway
from decodeloop.gateway.protocol import BoundedHttp
from decodeloop.gateway.settings import GatewaySettings

__all__ = ["build_server", "serve"]


def build_server(app: Gateway, settings: GatewaySettings) -> uvicorn.Server:
    """Not running yet. At shutdown it stops accepting, lets running requests end for `drain_s`, then cancels them."""
    limits = settings.limits
    return uvicorn.Server(
        uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            loop="uvloop",
            http=cast(Any, partial(BoundedHttp, limits)),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=limits.keep_alive_s,
            timeout_graceful_shutdown=limits.drain_s,
        )
    )


def serve(app: Gateway, settings: GatewaySettings) -> None:
    """Serve until SIGINT or SIGTERM."""
    build_server(app, settings).run()
