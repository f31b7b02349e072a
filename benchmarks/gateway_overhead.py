"""What the gateway costs, beside a direct call, a bare proxy of bytes and LiteLLM, before one mock server.

python benchmarks/gateway_overhead.py [--blocks 8] [--litellm PROGRAM] [--soak 100000] [--streams 10000] [--json]

CPU is the processes' own time (children included), so it holds on a busy machine as far as caches do; latency is the
client's. Every block asks every arm in turn, forwards, then backwards. The bare proxy is the floor: what the kernel and
the event loop take for the same connections. LiteLLM is `litellm` of an environment of its own; without one its arm is
left out, and the result says so. --soak: requests over which memory must stay flat. --streams: held open at once.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop
from overhead_arms import Served, floor, free_ports, litellm, mock, ours, running
from overhead_client import Client, body, many
from overhead_held import hold, soak

REQUESTS, AT_ONCE = 400, 8
STREAMS, CHUNKS, GAP_MS = 16, 200, 4.0
PINGS = 60
GOALS = {"request_us": 250.0, "chunk_us": 40.0, "added_ttft_ms": 1.0, "litellm_ratio": 10.0}


@dataclass
class Arm:
    served: Served
    request_us: list[float] = field(default_factory=list)
    chunk_us: list[float] = field(default_factory=list)
    ttft_ms: list[float] = field(default_factory=list)


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
    direct, bare, own, *rest = arms
    told["added_ttft_ms"] = spread(_differences(direct.ttft_ms, own.ttft_ms))
    told["over_the_floor"] = {
        name: spread(_differences(getattr(bare, name), getattr(own, name)))
        for name in ("request_us", "chunk_us", "ttft_ms")
    }
    if rest:
        ratios = [b / a for a, b in zip(own.request_us, rest[0].request_us, strict=True)]
        told["litellm_ratio"] = spread(ratios)
    return told


def _differences(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(one, other, strict=True)]


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
        ports = free_ports(4)
        start = [
            ("direct", mock(ports[0])),
            ("floor: bare byte proxy", floor(ports[0], ports[1])),
            ("decodeloop", ours(folder, ports[0], ports[2])),
        ]
        if options.litellm:
            start.append(("litellm", litellm(options.litellm, folder, ports[0], ports[3])))
        arms = [
            Arm(stack.enter_context(running(name, port, command, folder / f"{port}.log")))
            for (name, command), port in zip(start, ports, strict=False)
        ]
        uvloop.run(compare(arms, options.blocks))
        told = summary(arms)
        told["left_out"] = [] if options.litellm else ["litellm: no program of that name"]
        if options.soak:
            told["soak"] = uvloop.run(soak(arms[2].served, options.soak))
        if options.streams:
            told["held"] = uvloop.run(hold(arms[2].served, options.streams))
    told["goals"] = GOALS
    if options.json:
        print(json.dumps(told))
        return
    for name, value in told.items():
        print(f"{name}: {json.dumps(value)}")


if __name__ == "__main__":
    main()
