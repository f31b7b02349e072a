"""A governed gateway over a scripted upstream, in the test's own event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asgi import CHAT, JSON_HEADERS, Response, call, chat, connect
from decodeloop import config
from decodeloop.gateway.app import Gateway, build_app
from decodeloop.gateway.governance import Governance, build_governance
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.governance.ledger import LedgerRow
from decodeloop.governance.settings import GovernanceSettings
from decodeloop.types import Chunk, FinishReason, Request, Usage
from scripted import ScriptedUpstream, Step, report

NOON_S = 1_800_000_000.0
KEY = "dl-0123456789ab-" + "s" * 43
OTHER = "dl-ba9876543210-" + "t" * 43
KEYS = f"""
keys:
  - {{id: 0123456789ab, key: {KEY}, organization: acme, user: ana, agent: coder, capability: chat}}
  - {{id: ba9876543210, key: {OTHER}, organization: other, user: bob}}
prices: [{{prompt: 1.0, cached: 0.5, completion: 4.0, second_cost: 0.001}}]
"""


class Clock:
    now_s = NOON_S

    def __call__(self) -> float:
        return self.now_s


def settings(tmp_path: Path, text: str = "", **env: str) -> GovernanceSettings:
    whole = f"store: sqlite:{tmp_path}/books.sqlite3\n{KEYS}{text}"
    return config.load(whole, GovernanceSettings, env=env)


@dataclass
class Governed:
    app: Gateway
    governance: Governance
    clock: Clock

    async def rows(self) -> list[LedgerRow]:
        return list(await self.governance.store.rows(0, 1e12))

    async def ask(
        self, key: str | None = KEY, path: str = CHAT, headers: Mapping[str, str] = {}, **body: Any
    ) -> Response:
        return await call(self.app, "POST", path, chat(**body), self.headers(key, headers))

    def asking(self, key: str | None = KEY, path: str = CHAT, headers: Mapping[str, str] = {}, **body: Any) -> Any:
        return connect(self.app, "POST", path, chat(**body), self.headers(key, headers))

    @staticmethod
    def headers(key: str | None, more: Mapping[str, str] = {}) -> dict[str, str]:
        return {**JSON_HEADERS, **({} if key is None else {"authorization": f"Bearer {key}"}), **more}


@asynccontextmanager
async def governed(
    made: GovernanceSettings, upstream: ScriptedUpstream, redact: Any = None, **gateway: Any
) -> AsyncIterator[Governed]:
    clock = Clock()
    governance = build_governance(made, clock=clock, redact=redact)
    app = build_app(GatewaySettings(**gateway), {"first": upstream}, governance=governance)
    await governance.start()
    try:
        yield Governed(app, governance, clock)
    finally:
        await governance.close()


def run(
    made: GovernanceSettings,
    script: Callable[[Request], Iterable[Step]],
    work: Callable[[Governed, ScriptedUpstream], Any],
    **gateway: Any,
) -> Any:
    async def whole() -> Any:
        upstream = ScriptedUpstream(script)
        async with governed(made, upstream, **gateway) as there:
            return await work(there, upstream)

    return asyncio.run(whole())


def says_tokens(count: int, *, prompt: int = 7, wait_s: float = 0.0) -> Callable[[Request], Iterable[Step]]:
    """`count` tokens, a chunk each, as far as max_tokens allows."""

    def script(request: Request) -> Iterable[Step]:
        most = count if request.params.max_tokens is None else min(count, request.params.max_tokens)
        yield Chunk(usage=Usage(prompt, 0, 0))
        for place in range(most):
            if wait_s:
                yield wait_s
            yield Chunk(text="x", token_ids=(place,))
        reason = FinishReason.STOP if most == count else FinishReason.LENGTH
        yield Chunk(finish_reason=reason, usage=Usage(prompt, 0, most), report=report(request))

    return script
