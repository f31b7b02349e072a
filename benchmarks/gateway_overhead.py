"""What the gateway costs, beside a direct call and beside LiteLLM, before one mock server.

python benchmarks/gateway_overhead.py [--blocks 8] [--litellm PROGRAM] [--soak 100000] [--streams 10000] [--json]

CPU is the processes' own time (children included), so it holds on a busy machine; latency is the client's. Every block
asks every arm in turn, forwards, then backwards. LiteLLM is `litellm` of an environment of its own; without one its arm
is left out, and the result says so. --soak: requests over which memory must stay flat. --streams: held open at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import uvloop
import yaml

HERE = Path(__file__).parent
KEY = "sk-benchmark-0123456789abcdef"
REQUESTS, AT_ONCE = 400, 8
STREAMS, CHUNKS, GAP_MS = 16, 200, 4.0
PINGS = 60
PATIENCE_S = 120.0
GOALS = {"request_us": 250.0, "chunk_us": 40.0, "added_ttft_ms": 1.0, "litellm_ratio": 10.0}


@dataclass
class Served:
    name: str
    port: int
    process: psutil.Process

    def cpu_s(self) -> float:
        total = 0.0
        for each in (self.process, *self.process.children(recursive=True)):
            times = each.cpu_times()
            total += times.user + times.system
        return total

    def rss_mib(self) -> float:
        each = (self.process, *self.process.children(recursive=True))
        return sum(one.memory_info().rss for one in each) / 2**20


@dataclass
class Arm:
    served: Served
    request_us: list[float] = field(default_factory=list)
    chunk_us: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)


class Client:
    """One connection, kept alive."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, body: bytes, *, hold: asyncio.Event | None = None) -> float:
        """Seconds to the first byte of the answer's body. hold: leave the rest unread until it is set."""
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port, limit=2**20)
        reader, writer = self.streams
        began = time.perf_counter()
        writer.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b" % (KEY.encode(), len(body), body)
        )
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise SystemExit(f"port {self.port} answered {head[:200]!r}")
        lower = head.lower()
        if b"content-length:" in lower:
            length = int(lower.partition(b"content-length:")[2].split(b"\r\n")[0])
            await reader.readexactly(length)
            return time.perf_counter() - began
        first_s = 0.0
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            await reader.readexactly(size + 2)
            first_s = first_s or time.perf_counter() - began
            if size == 0:
                return first_s
            if hold is not None:
                await hold.wait()

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()


def body(*, stream: bool = False, chunks: int = 1, gap_ms: float = 0.0) -> bytes:
    text = "You review code. " * 40
    messages = [{"role": "system", "content": text}, {"role": "user", "content": "Is this right?"}]
    fields: dict[str, Any] = {"model": "mock", "messages": messages, "max_tokens": 64, "temperature": 0.5}
    return json.dumps({**fields, "stream": stream, "user": f"chunks={chunks} gap_ms={gap_ms}"}).encode()


async def many(port: int, count: int, at_once: int, asked: bytes) -> None:
    clients = [Client(port) for _ in range(at_once)]

    async def run(client: Client, share: int) -> None:
        for _ in range(share):
            await client.ask(asked)
        client.close()

    await asyncio.gather(*(run(client, count // at_once) for client in clients))


async def measure(arm: Arm) -> None:
    served = arm.served
    before = served.cpu_s()
    await many(served.port, REQUESTS, AT_ONCE, body())
    request_us = (served.cpu_s() - before) / REQUESTS * 1e6
    before = served.cpu_s()
    await many(served.port, STREAMS, STREAMS, body(stream=True, chunks=CHUNKS, gap_ms=GAP_MS))
    chunk_us = ((served.cpu_s() - before) * 1e6 / STREAMS - request_us) / CHUNKS
    client = Client(served.port)
    asked = body(stream=True)
    first = [await client.ask(asked) for _ in range(PINGS)]
    client.close()
    arm.request_us.append(request_us)
    arm.chunk_us.append(chunk_us)
    arm.ttft_ms.append(1e3 * statistics.median(first))


@contextmanager
def running(name: str, port: int, command: Sequence[str], log: Path) -> Iterator[Served]:
    with log.open("w") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, cwd=log.parent)
        try:
            _wait(name, port, process, log)
            yield Served(name, port, psutil.Process(process.pid))
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait(name: str, port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit(f"{name} did not start:\n{log.read_text()[-2000:]}")


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        bound = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in bound:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in bound]


def ours(folder: Path, mock_port: int, port: int) -> list[str]:
    settings = {
        "model": None,
        "gateway": {
            "port": port,
            "api_keys": [KEY],
            "upstreams": {"mock": {"url": f"http://127.0.0.1:{mock_port}", "engine": "openai"}},
            "limits": {"max_concurrent_requests": 20000},
        },
    }
    path = folder / "ours.yaml"
    path.write_text(yaml.safe_dump(settings))
    return [sys.executable, "-m", "decodeloop", "serve", "--config", str(path)]


def litellm(program: str, folder: Path, mock_port: int, port: int) -> list[str]:
    row = {"model": "openai/mock", "api_base": f"http://127.0.0.1:{mock_port}/v1", "api_key": "none"}
    settings = {"model_list": [{"model_name": "mock", "litellm_params": row}], "general_settings": {"master_key": KEY}}
    path = folder / "litellm.yaml"
    path.write_text(yaml.safe_dump(settings))
    return [program, "--config", str(path), "--port", str(port), "--num_workers", "1"]


async def soak(served: Served, requests: int) -> dict[str, float]:
    """Resident memory after each tenth of the requests."""
    sizes = []
    for _ in range(10):
        await many(served.port, requests // 10, AT_ONCE, body())
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


def summary(arms: Sequence[Arm]) -> dict[str, Any]:
    def spread(values: Sequence[float]) -> dict[str, float]:
        ordered = sorted(values)
        return {"median": statistics.median(ordered), "low": ordered[0], "high": ordered[-1]}

    told: dict[str, Any] = {
        arm.served.name: {
            "request_us": spread(arm.request_us),
            "chunk_us": spread(arm.chunk_us),
            "ttft_ms": spread(arm.ttft_ms),
        }
        for arm in arms
    }
    direct, own, *rest = arms
    added = [b - a for a, b in zip(direct.ttft_ms, own.ttft_ms, strict=True)]
    told["added_ttft_ms"] = spread(added)
    if rest:
        ratios = [b / a for a, b in zip(own.request_us, rest[0].request_us, strict=True)]
        told["litellm_ratio"] = spread(ratios)
    return told


async def compare(arms: Sequence[Arm], blocks: int) -> None:
    for arm in arms:
        await many(arm.served.port, 64, AT_ONCE, body())  # warm
    for block in range(blocks):
        for arm in arms if block % 2 == 0 else reversed(arms):
            await measure(arm)
        print(f"block {block + 1} of {blocks}", file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--litellm", default=shutil.which("litellm"))
    parser.add_argument("--soak", type=int, default=0)
    parser.add_argument("--streams", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ports = free_ports(3)
        start = [
            ("direct", [sys.executable, str(HERE / "mock_openai.py"), str(ports[0])]),
            ("decodeloop", ours(folder, ports[0], ports[1])),
        ]
        if options.litellm:
            start.append(("litellm", litellm(options.litellm, folder, ports[0], ports[2])))
        arms = [
            Arm(stack.enter_context(running(name, port, command, folder / f"{name}.log")))
            for (name, command), port in zip(start, ports, strict=False)
        ]
        uvloop.run(compare(arms, options.blocks))
        told = summary(arms)
        told["left_out"] = [] if options.litellm else ["litellm: no program of that name"]
        if options.soak:
            told["soak"] = uvloop.run(soak(arms[1].served, options.soak))
        if options.streams:
            told["held"] = uvloop.run(hold(arms[1].served, options.streams))
    told["goals"] = GOALS
    if options.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
