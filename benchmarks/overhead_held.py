"""What a gateway's memory does over many requests, and with many streams held open."""

from __future__ import annotations

import asyncio
import statistics
import sys
from typing import Any

import psutil
from overhead_arms import Served
from overhead_client import Client, body, many


async def soak(served: Served, requests: int) -> dict[str, float]:
    """Resident memory after each tenth of the requests."""
    sizes = []
    for _ in range(10):
        await many(served.port, requests // 10, 8, body())
        sizes.append(served.rss_mib())
        print(f"soak: {len(sizes) * requests // 10} requests, {sizes[-1]:.1f} MiB", file=sys.stderr)
    return {"requests": requests, "first_mib": sizes[1], "last_mib": sizes[-1], "growth_mib": sizes[-1] - sizes[1]}


async def hold(served: Served, streams: int) -> dict[str, float]:
    release = asyncio.Event()
    clients = [Client(served.port) for _ in range(streams)]
    before = served.rss_mib()
    asked = body(stream=True, chunks=600, gap_ms=10_000.0)
    tasks: list[asyncio.Task[float]] = []
    for place, client in enumerate(clients):
        tasks.append(asyncio.create_task(client.ask(asked, hold=release)))
        if place % 100 == 99:
            await asyncio.sleep(0.05)
    open_streams = 0
    for _ in range(600):
        await asyncio.sleep(0.2)
        open_streams = sum(c.raddr.port == served.port for c in _outgoing())
        failed = [task for task in tasks if task.done()]
        if failed:
            failed[0].result()
        if open_streams >= streams:
            break
    ping = Client(served.port)
    first_ms = [1e3 * await ping.ask(body(stream=True)) for _ in range(20)]
    used = served.rss_mib() - before
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    for client in (*clients, ping):
        client.close()
    return {
        "streams": open_streams,
        "kib_a_stream": 1024 * used / max(open_streams, 1),
        "ttft_beside_them_ms": statistics.median(first_ms),
    }


def _outgoing() -> list[Any]:
    connections = psutil.Process().net_connections("tcp")
    return [each for each in connections if each.raddr and each.status == psutil.CONN_ESTABLISHED]
