"""A real server on a free port, in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from asgi import gateway
from decodeloop.gateway.server import build_server
from decodeloop.gateway.settings import GatewaySettings
from scripted import ScriptedUpstream


class Live:
    def __init__(self, upstream: ScriptedUpstream, server: uvicorn.Server, port: int) -> None:
        self.upstream, self.server, self.port = upstream, server, port
        self.url = f"http://127.0.0.1:{port}"

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)


@contextmanager
def served(upstream: ScriptedUpstream, **settings: Any) -> Iterator[Live]:
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = build_server(gateway(upstream, **settings), GatewaySettings(**settings))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    port = listener.getsockname()[1]
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive())
    try:
        yield Live(upstream, server, port)
    finally:
        server.should_exit = True
        thread.join()


def wait_for(condition: Any) -> None:
    """Until true; the suite's timeout is the limit."""
    while not condition():
        time.sleep(0.005)
