"""A scripted upstream behind a real server."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from asgi import gateway
from decodeloop.gateway.settings import GatewaySettings
from listening import listening
from scripted import ScriptedUpstream


class Live:
    def __init__(self, upstream: ScriptedUpstream, server: uvicorn.Server, port: int) -> None:
        self.upstream, self.server, self.port = upstream, server, port
        self.url = f"http://127.0.0.1:{port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextmanager
def served(upstream: ScriptedUpstream, **settings: Any) -> Iterator[Live]:
    with listening(gateway(upstream, **settings), GatewaySettings(**settings)) as (server, port):
        yield Live(upstream, server, port)
