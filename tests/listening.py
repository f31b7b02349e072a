"""A gateway on a free port, in a thread of its own."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from decodeloop.gateway.app import Gateway
from decodeloop.gateway.server import build_server
from decodeloop.gateway.settings import GatewaySettings


@contextmanager
def listening(app: Gateway, settings: GatewaySettings) -> Iterator[tuple[uvicorn.Server, int]]:
    """The running server, and its port on 127.0.0.1."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    server = build_server(app, settings)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    port = listener.getsockname()[1]
    thread.start()
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        yield server, port
    finally:
        server.should_exit = True
        thread.join()


def wait_for(condition: Callable[[], bool]) -> None:
    """Until true; the suite's timeout is the limit."""
    while not condition():
        time.sleep(0.005)
