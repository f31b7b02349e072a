"""What a gateway's request is made of: the floor, HTTP on one side and on both, a framework's in its place, the whole.

python benchmarks/overhead_parts.py [--blocks 8]

Processor microseconds a request of each arm's process, mirrored blocks, one mock server behind all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import uvicorn
import uvloop
from overhead_arms import Served, floor, free_ports, mock, ours, running
from overhead_client import body, many

from decodeloop.gateway.client import CLIENT
from decodeloop.gateway.protocol import BoundedHttp
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.upstreams.http import HttpClient

REQUESTS, AT_ONCE = 400, 8
PATH = "/v1/chat/completions"
PARTS = ("server", "server and client", "uvicorn and aiohttp")


class Part:
    """An ASGI application that says one thing, or what the mock says."""

    def __init__(self, name: str, mock_port: int) -> None:
        self._name, self._url = name, f"http://127.0.0.1:{mock_port}"
        self._client: Any = None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        said = await self._said(await _body(scope, receive))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(said))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": said})

    async def _said(self, asked: bytes) -> bytes:
        if self._name == "server":
            return b"x" * 500
        if self._name == "server and client":
            self._client = self._client or HttpClient(self._url, {}, connect_s=5.0, silence_s=60.0)
            answer = await self._client.post(PATH, asked)
            said: bytes = await answer.read(2**20)
            answer.close()
            return said
        self._client = self._client or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False, cookie_jar=aiohttp.DummyCookieJar()
        )
        async with self._client.post(self._url + PATH, data=asked, headers={"content-type": "application/json"}) as got:
            return bytes(await got.read())


async def _body(scope: Any, receive: Any) -> bytes:
    here = scope[CLIENT].body_now() if CLIENT in scope else None
    if here is not None:
        return bytes(here)
    parts = b""
    while True:
        message = await receive()
        parts += message["body"]
        if not message.get("more_body"):
            return parts


def serve(name: str, port: int, mock_port: int) -> None:
    http: Any = "httptools" if name == PARTS[-1] else partial(BoundedHttp, Limits())
    uvicorn.run(
        Part(name, mock_port), port=port, loop="uvloop", http=http, ws="none", access_log=False, log_config=None
    )


async def compare(arms: Sequence[Served], blocks: int) -> dict[str, list[float]]:
    took: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in arms:
        await many(arm.port, 64, AT_ONCE, body())  # warm
    for block in range(blocks):
        for arm in arms if block % 2 == 0 else reversed(arms):
            before = arm.cpu_s()
            await many(arm.port, REQUESTS, AT_ONCE, body())
            took[arm.name].append((arm.cpu_s() - before) / REQUESTS * 1e6)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.part:
        serve(options.part[0], int(options.part[1]), int(options.part[2]))
        return
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        mocked, bare, whole, *ports = free_ports(3 + len(PARTS))
        start = [("mock", mocked, mock(mocked)), ("floor", bare, floor(mocked, bare))]
        for name, port in zip(PARTS, ports, strict=True):
            start.append((name, port, [sys.executable, __file__, "--part", name, str(port), str(mocked)]))
        start.append(("gateway", whole, ours(folder, mocked, whole)))
        arms = [stack.enter_context(running(*each, folder / f"{each[1]}.log")) for each in start]
        took = uvloop.run(compare(arms, options.blocks))
    for name, values in took.items():
        print(json.dumps({"arm": name, "us": statistics.median(values), "low": min(values), "high": max(values)}))


if __name__ == "__main__":
    main()
