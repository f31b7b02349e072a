"""kill -9 of a gateway, of PostgreSQL and of Redis at random under load: nothing durable is lost, budgets hold.

    python benchmarks/chaos.py [--kills 20] [--clients 8] [--seed 1]

Two gateways share one PostgreSQL and one Redis, and answer from a toy upstream over HTTP. Clients ask all the time,
each request under its own name. Afterwards every answer that a client got whole must be in the ledger, once, with the
usage that the client was told; the ledger of each budget must be within its cap; counters must equal the ledger plus
what is open; and the service must have come back by itself after every kill. Two more clients insist: they name each
request by an idempotency key and send it again until it is answered; each of these must be billed as one answer is,
however many gateways died over it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web

sys.path.insert(0, str(Path(__file__).parent))

import stores
from chaos_clients import KEY, RETURN_S, TIGHT, TOKENS, Told, ask, client, insistent

from decodeloop import config
from decodeloop.gateway.app import build_app
from decodeloop.gateway.governance import build_governance
from decodeloop.gateway.server import bind, serve
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.store.shared import SharedBooks
from decodeloop.governance.ledger import LedgerRow, Outcome
from decodeloop.governance.settings import GovernanceSettings

TIGHT_CAP = 3000  # tokens: reached in the run, and never passed
INSISTENT = 2
LEASE_S = 15.0
CONFIG = """
gateway:
  port: {port}
  upstreams: {{toy: {{url: "http://127.0.0.1:{upstream}"}}}}
governance:
  store: {postgres}
  counters: {redis}
  lease_s: {lease}
  checkpoint_s: 0.2
  template_tokens: 0
  keys:
    - {{id: 00112233aabb, key: {key}, organization: wide, user: ana}}
    - {{id: bbaa33221100, key: {tight}, organization: tight, user: bob}}
  prices: [{{prompt: 1.0, completion: 4.0}}]
  limits:
    - {{id: wide, scope: {{organization: wide}}, unit: tokens, amount: 100000000, window: total}}
    - {{id: tight, scope: {{organization: tight}}, unit: tokens, amount: {cap}, window: total}}
"""


@dataclass(frozen=True)
class Config:
    """Of a gateway without an engine."""

    gateway: GatewaySettings
    governance: GovernanceSettings


@dataclass
class Gateway:
    port: int
    config: Path
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with open(self.log, "ab") as log:
            command = [sys.executable, __file__, "--serve", str(self.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def kill(self, how: int = signal.SIGKILL) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, how)
            self.process.wait()


async def toy(request: web.Request) -> web.StreamResponse:
    """Eight tokens, ten milliseconds apart; the prompt has five."""
    body = await request.json()
    usage = {"prompt_tokens": 5, "completion_tokens": 8, "total_tokens": 13}
    if not body.get("stream"):
        await asyncio.sleep(0.08)
        choice = {"index": 0, "message": {"role": "assistant", "content": "x" * 8}, "finish_reason": "stop"}
        return web.json_response({"id": "t", "choices": [choice], "usage": usage})
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    with suppress(ConnectionResetError):  # a gateway that was killed
        await stream_toy(request, response, usage)
    return response


async def stream_toy(request: web.Request, response: web.StreamResponse, usage: dict[str, int]) -> None:
    await response.prepare(request)
    for place in range(8):
        await asyncio.sleep(0.01)
        last = place == 7
        choice = {"index": 0, "delta": {"content": "x"}, "finish_reason": "stop" if last else None}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
    await response.write(b"data: " + json.dumps({"choices": [], "usage": usage}).encode() + b"\n\ndata: [DONE]\n\n")


async def models(_: web.Request) -> web.Response:
    return web.json_response({"object": "list", "data": [{"id": "toy", "object": "model", "created": 0}]})


async def start_toy() -> tuple[web.AppRunner, int]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", toy)
    app.router.add_get("/v1/models", models)
    app.router.add_get("/health", models)
    app.router.add_get("/metrics", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, int(runner.addresses[0][1])


async def returned(ports: list[int], session: aiohttp.ClientSession) -> float:
    """Seconds until every gateway answers again."""
    begin_s = time.monotonic()
    probe = Told()
    for port in ports:
        while True:
            with suppress(aiohttp.ClientError, OSError, TimeoutError):
                if await ask(f"http://127.0.0.1:{port}", "probe", KEY, probe, session, stream=False) == 200:
                    break
            if time.monotonic() - begin_s > RETURN_S:
                raise SystemExit(f"gateway {port} did not come back in {RETURN_S:.0f} s: {dict(probe.statuses)}")
            await asyncio.sleep(0.05)
    return time.monotonic() - begin_s


async def run(kills: int, clients: int, seed: int, order: Sequence[str] = ()) -> dict[str, object]:
    """order: what is killed, where that is not left to chance.

    Raises AssertionError where something was lost or overspent.
    """
    chance = random.Random(seed)
    with stores.postgres() as postgres, stores.redis() as redis, tempfile.TemporaryDirectory() as directory:
        runner, upstream = await start_toy()
        gateways = []
        for name in ("one", "two"):
            port = _free_port()
            path = Path(directory) / f"{name}.yaml"
            addresses = {"upstream": upstream, "postgres": postgres.url, "redis": redis.url}
            values = {"port": port, "lease": LEASE_S, "key": KEY, "tight": TIGHT, "cap": TIGHT_CAP, **addresses}
            path.write_text(CONFIG.format(**values))
            gateways.append(Gateway(port, path, Path(directory) / f"{name}.log"))
        ports = [gateway.port for gateway in gateways]
        told, done, returns = Told(), asyncio.Event(), []
        timeout = aiohttp.ClientTimeout(total=20)
        try:
            for gateway in gateways:
                gateway.start()
            async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
                await returned(ports, session)
                work = [asyncio.create_task(client(name, ports, told, done, session)) for name in range(clients)]
                work += [asyncio.create_task(insistent(name, ports, told, done, session)) for name in range(INSISTENT)]
                killed: Counter[str] = Counter()
                for turn in range(kills):
                    await asyncio.sleep(chance.uniform(0.3, 1.0))
                    what = order[turn] if order else chance.choice(["gateway", "postgres", "redis"])
                    killed[what] += 1
                    if what == "gateway":
                        gateway = chance.choice(gateways)
                        gateway.kill()
                        gateway.start()
                    else:
                        server = postgres if what == "postgres" else redis
                        server.kill()
                        await asyncio.sleep(chance.uniform(0.0, 0.5))
                        await asyncio.to_thread(server.start)
                    returns.append(await returned(ports, session))
                done.set()
                await asyncio.gather(*work)
            found = await check(postgres.url, redis.url, told)
        except BaseException:
            for gateway in gateways:
                print(gateway.log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            for gateway in gateways:
                gateway.kill(signal.SIGTERM)
            await runner.cleanup()
    slowest = max(returns, default=0.0)
    seen = {"kills": dict(killed), "statuses": dict(told.statuses), "whole": len(told.whole)}
    seen |= {"insisted": len(told.insisted)}
    return {**seen, **found, "slowest_return_s": round(slowest, 2)}


async def check(postgres: str, redis: str, told: Told) -> dict[str, object]:
    books = SharedBooks(postgres, redis, instance="judge", clock=time.time, lease_s=LEASE_S)
    await books.start()
    try:
        deadline_s = time.monotonic() + 10 * LEASE_S
        while await books.open() and time.monotonic() < deadline_s:
            await asyncio.sleep(LEASE_S / 4)
            await books._beat_once()
        assert not await books.open(), "requests of the dead are still open"
        await books.flush()
        rows = await books.rows(0, 1e12)
        tokens: Counter[str] = Counter()
        billed: Counter[str] = Counter()
        entries: Counter[str] = Counter()
        for row in rows:
            tokens[row.identity.organization] += row.usage.prompt + row.usage.completion
            billed[row.task] += row.usage.prompt + row.usage.completion
            entries[row.request_id] += row.entry == 0
        assert set(entries.values()) == {1}, "a request was billed twice"
        estimated = [row for row in rows if row.outcome is Outcome.ESTIMATED]
        lost = [id for id in told.whole if billed[id] == 0]
        assert not lost, f"{len(lost)} whole answers are not in the ledger: {lost[:5]}"
        by_estimate = {row.task for row in estimated}
        wrong = [id for id, used in told.whole.items() if billed[id] != used and id not in by_estimate]
        assert not wrong, f"{len(wrong)} answers are billed other than told: {[(id, billed[id]) for id in wrong[:5]]}"
        taken_back = check_insisted(rows, told)
        assert tokens["tight"] <= TIGHT_CAP, f"a budget of {TIGHT_CAP} was overspent: {tokens['tight']}"
        used = await books.used([("tight|tight///", 0), ("wide|wide///", 0)])
        assert used == (tokens["tight"], tokens["wide"]), f"counters {used} are not the ledger's {dict(tokens)}"
        return {"rows": len(rows), "estimated": len(estimated), "tight": tokens["tight"], "taken_back": taken_back}
    finally:
        await books.close()


def check_insisted(rows: Sequence[LedgerRow], told: Told) -> int:
    """How many estimates were taken back. An answer that was told before its gateway died is charged by estimate."""
    billed: Counter[str] = Counter()
    estimates: Counter[str] = Counter()
    corrections: Counter[str] = Counter()
    for row in rows:
        billed[row.task] += row.usage.prompt + row.usage.completion
        estimates[row.task] += row.outcome is Outcome.ESTIMATED
        corrections[row.task] += row.outcome is Outcome.CORRECTION
    certain = [id for id in told.insisted if estimates[id] == corrections[id]]
    wrong = [(id, billed[id]) for id in certain if billed[id] != TOKENS]
    assert not wrong, f"{len(wrong)} requests with a key are not billed once: {wrong[:5]}"
    return sum(corrections[id] for id in told.insisted)


def serve_gateway(path: Path) -> None:
    """What `decodeloop serve` does for a configuration without a model, without importing an engine."""
    settings = config.load(path.read_text(), Config, env={}, source=str(path))
    governance = build_governance(settings.governance, clock=time.time)
    with bind(settings.gateway.host, settings.gateway.port) as bound:
        serve(build_app(settings.gateway, {}, governance=governance), settings.gateway, bound)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)  # be one of the gateways
    options = parser.parse_args()
    if options.serve is not None:
        serve_gateway(options.serve)
        return
    print(json.dumps(asyncio.run(run(options.kills, options.clients, options.seed))))


if __name__ == "__main__":
    main()
