"""What governance adds to a request: the processor time of a gateway with and without it, in alternating blocks.

    python benchmarks/governed_overhead.py [--requests 2000] [--blocks 5]

One process, no sockets: requests enter the ASGI application, an upstream answers eight tokens at once. Governed: a
virtual key, a grant, a token rate and a money budget, SQLite, an audit chain. Processor time is the whole process's,
the store's and the audit's threads included.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from decodeloop import config
from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.governance import Governance, build_governance
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.governance.settings import GovernanceSettings
from decodeloop.types import Chunk, FinishReason, Load, ModelCard, Report, Request, Usage

KEY = "dl-0123456789ab-" + "s" * 43
BODY = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}).encode()
HEADERS = [(b"content-type", b"application/json"), (b"authorization", f"Bearer {KEY}".encode())]
TOGETHER = 16

SETTINGS = """
store: sqlite:{directory}/books.sqlite3
keys: [{{id: 0123456789ab, key: {key}, organization: acme, user: ana, agent: coder}}]
grants: [{{id: g, scope: {{organization: acme}}, models: [tiny], max_draft_len: 8}}]
prices: [{{prompt: 1.0, completion: 4.0, second_cost: 0.001}}]
limits:
  - {{id: pace, scope: {{organization: acme, user: "*"}}, unit: tokens, amount: 100000000, window: minute}}
  - {{id: month, scope: {{organization: acme}}, unit: money, amount: 1000000, window: month}}
audit: {{directory: {directory}/audit}}
"""


class Instant:
    """An upstream that has its answer ready."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ready(self) -> bool:
        return True

    def models(self) -> Sequence[ModelCard]:
        return (ModelCard("tiny", 0, 2048),)

    def load(self) -> Load:
        return Load(0, 0, 0, 1.0)

    def counters(self) -> Mapping[str, float]:
        return {}

    def describe(self) -> Mapping[str, Any]:
        return {}

    async def stream(self, request: Request) -> AsyncGenerator[Chunk, None]:
        phases = dict.fromkeys(("queue_ms", "draft_ms", "sample_ms", "overhead_ms"), 0.0)
        counts = dict.fromkeys(("drafted", "verified", "accepted", "discarded"), 0)
        report = Report(
            seed=request.seed,
            request_class=request.request_class,
            drafter=None,
            prefill_ms=1.0,
            verify_ms=8.0,
            steps=8,
            reasons={},
            **phases,
            **counts,
        )
        usage = Usage(7, 0, 8)
        ids = tuple(range(8))
        yield Chunk(text="x" * 8, token_ids=ids, finish_reason=FinishReason.STOP, usage=usage, report=report)


async def ask(app: Gateway) -> int:
    sent: list[Any] = []
    asked = [{"type": "http.request", "body": BODY, "more_body": False}]

    async def receive() -> Any:
        if asked:
            return asked.pop()
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": HEADERS}
    await app(scope, receive, send)
    return int(sent[0]["status"])


async def block(app: Gateway, governance: Governance | None, requests: int) -> tuple[float, list[float]]:
    """Processor microseconds a request, and each one's latency in ms."""
    latencies: list[float] = []

    async def client(count: int) -> None:
        for _ in range(count):
            begin_s = time.perf_counter()
            assert await ask(app) == 200
            latencies.append(1e3 * (time.perf_counter() - begin_s))

    begin_s = time.process_time()
    await asyncio.gather(*[client(requests // TOGETHER) for _ in range(TOGETHER)])
    if governance is not None:
        await governance.store.flush()
    return 1e6 * (time.process_time() - begin_s) / (requests // TOGETHER * TOGETHER), latencies


async def alone(app: Gateway, count: int) -> float:
    """Median latency of one request at a time, in ms."""
    took = []
    for _ in range(count):
        begin_s = time.perf_counter()
        assert await ask(app) == 200
        took.append(1e3 * (time.perf_counter() - begin_s))
    return statistics.median(took)


async def run(requests: int, blocks: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        made = config.load(SETTINGS.format(directory=directory, key=KEY), GovernanceSettings, env={})
        governance = build_governance(made, clock=time.time)
        free = build_app(GatewaySettings(api_keys=(KEY,)), {"tiny": Instant()})
        governed = build_app(GatewaySettings(), {"tiny": Instant()}, governance=governance)
        await governance.start()
        try:
            for app in (free, governed):
                await block(app, None, 200)
            pairs, single = [], []
            for _ in range(blocks):
                without, _ = await block(free, None, requests)
                with_, _ = await block(governed, governance, requests)
                pairs.append((without, with_))
                single.append((await alone(free, 200), await alone(governed, 200)))
        finally:
            await governance.close()
    added = [with_ - without for without, with_ in pairs]
    return {
        "cpu_us_without": round(statistics.median(without for without, _ in pairs), 1),
        "cpu_us_governed": round(statistics.median(with_ for _, with_ in pairs), 1),
        "cpu_us_added": round(statistics.median(added), 1),
        "cpu_us_added_range": [round(min(added), 1), round(max(added), 1)],
        "p50_ms_added_alone": round(statistics.median(with_ - without for without, with_ in single), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(asyncio.run(run(options.requests, options.blocks))))


if __name__ == "__main__":
    main()
