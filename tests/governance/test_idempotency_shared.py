"""Gateways that share PostgreSQL and Redis run and bill a request with an Idempotency-Key once, whoever is asked."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from decodeloop import config
from decodeloop.gateway.app import build_app
from decodeloop.gateway.governance import build_governance
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.governance.settings import GovernanceSettings
from decodeloop.types import Chunk, FinishReason, Load, ModelCard, Request, Usage

BODY = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
LIMIT = "limits: [{id: all, unit: requests, amount: 100, window: total}]"


class Counting:
    """Says a word of its own, slowly."""

    def __init__(self, word: str) -> None:
        self.word, self.asked = word, 0

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def ready(self) -> bool:
        return True

    def models(self) -> list[ModelCard]:
        return [ModelCard("m", created=0, max_context=100)]

    def load(self) -> Load:
        return Load(running=0, waiting=0, context_tokens=0, kv_free_fraction=1.0)

    def counters(self) -> dict[str, float]:
        return {}

    def describe(self) -> dict[str, Any]:
        return {}

    async def stream(self, request: Request) -> Any:
        self.asked += 1
        await asyncio.sleep(0.02)
        yield Chunk(text=self.word, token_ids=(1,))
        yield Chunk(finish_reason=FinishReason.STOP, usage=Usage(3, 0, 1))


@pytest.mark.parametrize("stream", [False, True])
def test_the_same_from_every_gateway_and_billed_once(shared: tuple[str, str], stream: bool) -> None:
    text = f"store: {shared[0]}\ncounters: {shared[1]}\n{LIMIT}"
    headers, body = {"idempotency-key": "k"}, {**BODY, "stream": stream}

    async def whole() -> None:
        async with AsyncExitStack() as stack:
            upstreams, clients, governances = [Counting("a"), Counting("b")], [], []
            for upstream in upstreams:
                made = config.load(text, GovernanceSettings, env={})
                governance = build_governance(made, clock=lambda: 1_800_000_000.0)
                app = build_app(GatewaySettings(), {"own": upstream}, governance=governance)
                await governance.start()
                stack.push_async_callback(governance.close)
                transport = httpx.ASGITransport(app)
                client = httpx.AsyncClient(transport=transport, base_url="http://gateway")
                clients.append(await stack.enter_async_context(client))
                governances.append(governance)
            path = "/v1/chat/completions"
            got = await asyncio.gather(*(each.post(path, json=body, headers=headers) for each in clients * 3))
            got += [await each.post(path, json=body, headers=headers) for each in clients]
            assert {each.status_code for each in got} == {200}, [each.text for each in got]
            assert len({each.content for each in got}) == 1
            assert sum(upstream.asked for upstream in upstreams) == 1
            assert len(await governances[0].store.rows(0.0, 1e12)) == 1
            refused = await clients[1].post(path, json={**body, "max_tokens": 3}, headers=headers)
            assert refused.status_code == 400

    asyncio.run(whole())
