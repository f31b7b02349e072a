"""The least that a proxy can cost: bytes from each connection to one of its own upstream, and back, unread.

python benchmarks/byte_proxy.py PORT UPSTREAM_PORT

Two receives, two sends and two turns of the event loop a request. What a gateway costs beyond it is its own doing; this
much is the kernel's and the loop's. A benchmark's set-up.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop


class Inward(asyncio.Protocol):
    """A client's connection."""

    def __init__(self, upstream_port: int) -> None:
        self.upstream_port = upstream_port
        self.outward: Outward | None = None
        self.early: list[bytes] = []  # what came before the upstream was there

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        made = await asyncio.get_running_loop().create_connection(
            lambda: Outward(self.transport), "127.0.0.1", self.upstream_port
        )
        self.outward = made[1]
        self.outward.transport.writelines(self.early)

    def data_received(self, data: bytes) -> None:
        if self.outward is None:
            self.early.append(data)
        else:
            self.outward.transport.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.outward is not None:
            self.outward.transport.close()


class Outward(asyncio.Protocol):
    """The upstream's end of it."""

    def __init__(self, client: asyncio.Transport) -> None:
        self.client = client

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.client.write(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self.client.close()


async def main(port: int, upstream_port: int) -> None:
    server = await asyncio.get_running_loop().create_server(lambda: Inward(upstream_port), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1]), int(sys.argv[2])))
