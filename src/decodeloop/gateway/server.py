"""The gateway on a socket: uvicorn with uvloop and httptools."""

from __future__ import annotations

import gc
import resource
import socket
from contextlib import suppress
from functools import partial
from typing import Any, cast

import uvicorn

from decodeloop.gateway.app import Gateway
from decodeloop.gateway.protocol import BoundedHttp
from decodeloop.gateway.settings import GatewaySettings

__all__ = ["bind", "build_server", "serve"]

GC_THRESHOLDS = (10_000, 20, 20)  # a request makes hundreds of objects, and few cycles


def bind(host: str, port: int) -> socket.socket:
    """A socket at that address (port 0: any free one), which nobody else has; it doesn't listen yet.

    Raises OSError naming the address and what is wrong with it.
    """
    bound = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except (OSError, UnicodeError) as error:
        if bound is not None:
            bound.close()
        raise OSError(f"can't serve on {host} port {port}: {getattr(error, 'strerror', None) or error}") from None
    return bound


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


def serve(app: Gateway, settings: GatewaySettings, bound: socket.socket) -> None:
    """Serve on `bound` until SIGINT or SIGTERM."""
    server = build_server(app, settings)
    _take_descriptors()
    settle_garbage()
    try:
        server.run([bound])
    finally:
        gc.unfreeze()  # what is never looked at is never let go: compiled parts would call it leaked


def settle_garbage() -> None:
    """What is there now stays: no collection need look at it. The largest would stop an answer for 60 ms."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


def _take_descriptors() -> None:
    """As many as this process may have: a stream takes two, and what a shell gives is enough for 500."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # where the system has a limit of its own
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
