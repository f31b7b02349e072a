"""What routing brings: all classes mixed on one engine with two pools, the router on and off.

python benchmarks/routing.py [--blocks 12] [--load 8] [--tokens 48] [--each 4] [--rounds 1] [--minutes 8]
    [--gains JSON] [--json]

One engine serves two pools: `speculative` (always drafts) and `plain`. First each class is measured in both, which
gives the pools their `gains`; then mixed traffic is sent in mirrored blocks, with the router choosing and with all
of it going to `speculative`, as an engine with one static setting does. Cost is machine time: each request's share of
its steps, as the engine attributes it. Intervals: paired by block, 95 %, both figures together; the p99 is each block's
own, so that a block's weather falls out of the ratio. A turn asks its prompts --rounds times; at a high load there
should be several requests for each place of it, since the last ones of a turn run in an emptying engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from gateways import gateway

from decodeloop.evaluation.statistics import paired_ratio

PROMPTS = Path(__file__).parent / "data" / "classes.jsonl"
PHASES = ("prefill_ms", "draft_ms", "verify_ms", "sample_ms", "overhead_ms")
GAIN_ROUNDS = 3


@dataclass(frozen=True)
class Served:
    request_class: str
    machine_ms: float
    tokens: int
    tpot_ms: float
    pool: str


def pooled(gains: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of one engine in two pools."""
    pools = {
        "speculative": {"upstreams": ["embedded"], "regime": "fixed", "gains": dict(gains)},
        "plain": {"upstreams": ["embedded"], "regime": "plain"},
    }
    engine = {"policy": "fixed", "draft_len": 4, "drafters": ["ngram"], "prefix_caching": False}
    return {"engine": engine, "gateway": {"pools": pools}}


async def ask(client: httpx.AsyncClient, prompt: Mapping[str, str], tokens: int, pool: str | None) -> Served:
    creative = prompt["class"] == "creative_writing"
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": prompt["prompt"]}],
        "max_tokens": tokens,
        "temperature": 1.0 if creative else 0.0,
        "seed": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "decodeloop": {"class": prompt["class"]},
    }
    headers = {} if pool is None else {"x-decodeloop-pool": pool}
    first_s = last_s = 0.0
    first_tokens, final = 0, {}
    async with client.stream(
        "POST", "/v1/chat/completions", json={**body, "return_token_ids": True}, headers=headers
    ) as got:
        if got.status_code != 200:
            raise SystemExit(f"{got.status_code}: {(await got.aread())[:300]!r}")
        async for line in got.aiter_lines():
            if not line.startswith("data: {"):
                continue
            event, now_s = json.loads(line[6:]), time.perf_counter()
            if any(choice.get("token_ids") for choice in event["choices"]):
                last_s = now_s
                if not first_s:
                    first_s, first_tokens = now_s, len(event["choices"][0]["token_ids"])
            if event.get("decodeloop"):
                final = event
    own, count = final["decodeloop"], final["usage"]["completion_tokens"]
    later = count - first_tokens
    return Served(
        request_class=prompt["class"],
        machine_ms=sum(own[phase] for phase in PHASES),
        tokens=count,
        tpot_ms=1e3 * (last_s - first_s) / later if later > 0 else 0.0,
        pool=got.headers["x-decodeloop-pool"],
    )


async def turn(
    url: str, prompts: Sequence[Mapping[str, str]], load: int, tokens: int, pool: str | None
) -> list[Served]:
    waiting = list(reversed(prompts))
    served: list[Served] = []

    async def run(client: httpx.AsyncClient) -> None:
        while waiting:
            served.append(await ask(client, waiting.pop(), tokens, pool))

    async with httpx.AsyncClient(base_url=url, timeout=600, limits=httpx.Limits(max_connections=load)) as client:
        await asyncio.gather(*(run(client) for _ in range(load)))
    return served


def by_class(prompts: Sequence[Mapping[str, str]]) -> dict[str, list[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = defaultdict(list)
    for prompt in prompts:
        found[prompt["class"]].append(prompt)
    return found


def per_token_ms(served: Sequence[Served]) -> float:
    return sum(each.machine_ms for each in served) / sum(each.tokens for each in served)


def measure_gains(url: str, prompts: Sequence[Mapping[str, str]], load: int, tokens: int) -> dict[str, Any]:
    gains: dict[str, Any] = {}
    for name, own in by_class(prompts).items():
        ratios = []
        for _ in range(GAIN_ROUNDS):
            asked = list(islice(cycle(own), max(load, len(own))))
            plain = asyncio.run(turn(url, asked, load, tokens, "plain"))
            drafted = asyncio.run(turn(url, asked, load, tokens, "speculative"))
            ratios.append(per_token_ms(plain) / per_token_ms(drafted))
        gains[name] = [[load, round(statistics.median(ratios), 3)]]
        print(f"gain of {name} at load {load}: {gains[name][0][1]}", file=sys.stderr)
    return gains


def compare(
    url: str, prompts: Sequence[Mapping[str, str]], blocks: int, load: int, tokens: int, *, until_s: float
) -> dict[str, Any]:
    """Cost a request and the slow end of time per token, of the router against the static pool. until_s: when no
    further block is begun."""
    cost: dict[str, list[float]] = {"on": [], "off": []}
    slow: dict[str, list[float]] = {"on": [], "off": []}
    pools: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for block in range(blocks):
        if time.monotonic() >= until_s:
            break
        order = ("on", "off", "off", "on") if block % 2 == 0 else ("off", "on", "on", "off")
        told: dict[str, list[Served]] = {"on": [], "off": []}
        for arm in order:
            told[arm] += asyncio.run(turn(url, prompts, load, tokens, None if arm == "on" else "speculative"))
        for arm, served in told.items():
            cost[arm].append(sum(each.machine_ms for each in served) / len(served))
            slow[arm].append(float(np.quantile([each.tpot_ms for each in served], 0.99)))
        for each in told["on"]:
            pools[each.request_class][each.pool] += 1
        ratios = [arm["on"][-1] / arm["off"][-1] for arm in (cost, slow)]
        print(
            f"block {block + 1} of {blocks}: {ratios[0]:.3f} of the cost, {ratios[1]:.3f} of TPOT p99", file=sys.stderr
        )
    return {
        "cost_ratio": asdict(paired_ratio(cost["on"], cost["off"], cells=2)),
        "tpot_p99_ratio": asdict(paired_ratio(slow["on"], slow["off"], cells=2)),
        "cost_ms_a_request": {arm: statistics.mean(values) for arm, values in cost.items()},
        "tpot_p99_by_block_ms": slow,
        "tpot_p99_ms": {arm: statistics.mean(values) for arm, values in slow.items()},
        "pools_with_router": {name: dict(counts) for name, counts in pools.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--blocks", type=int, default=12)
    parser.add_argument("--load", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--each", type=int, default=4, help="prompts of each class in a turn")
    parser.add_argument("--rounds", type=int, default=1, help="how often a turn asks them")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which no further block is begun")
    parser.add_argument("--gains", type=json.loads, help="as an earlier run measured them; else they are measured")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    until_s = time.monotonic() + 60.0 * options.minutes
    everything = [json.loads(line) for line in PROMPTS.read_text().splitlines()]
    classes = by_class(everything)
    measured = [prompt for own in classes.values() for prompt in own[: -options.each][: options.load]]
    mixed = [own[place - options.each] for place in range(options.each) for own in classes.values()] * options.rounds
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        gains = options.gains
        if gains is None:
            with gateway(folder, pooled({})) as url:
                gains = measure_gains(url, measured, options.load, options.tokens)
        with gateway(folder, pooled(gains)) as url:
            asyncio.run(turn(url, mixed, options.load, 8, None))  # warm
            told = compare(url, mixed, options.blocks, options.load, options.tokens, until_s=until_s)
    told = {"gains": gains, "load": options.load, "requests_a_turn": len(mixed), **told}
    print(json.dumps(told) if options.json else json.dumps(told, indent=2))


if __name__ == "__main__":
    main()
