"""Who asks while gateways and their stores are killed: clients that go on, and clients that insist."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import aiohttp

KEY = "dl-00112233aabb-" + "k" * 43
TIGHT = "dl-bbaa33221100-" + "t" * 43
TOKENS = 13  # of every answer, its prompt's included
RETURN_S = 120.0


@dataclass
class Told:
    """What clients were told. whole: request id -> tokens of answers that came to their end."""

    whole: dict[str, int] = field(default_factory=dict)
    insisted: dict[str, int] = field(default_factory=dict)  # request id -> how often it was sent until it was answered
    statuses: Counter[str] = field(default_factory=Counter)


async def client(name: int, ports: list[int], told: Told, done: asyncio.Event, session: aiohttp.ClientSession) -> None:
    turn = 0
    while not done.is_set():
        turn += 1
        id = f"chaos-{name}-{turn}"
        key, stream = (TIGHT if turn % 5 == 0 else KEY), turn % 2 == 0
        try:
            await ask(f"http://127.0.0.1:{ports[turn % len(ports)]}", id, key, told, session, stream=stream)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            told.statuses[type(error).__name__] += 1
            await asyncio.sleep(0.05)


async def ask(url: str, id: str, key: str, told: Told, session: aiohttp.ClientSession, *, stream: bool) -> int:
    headers = {"authorization": f"Bearer {key}", "x-session-id": id}
    status, text = await post(url, headers, session, stream=stream)
    told.statuses[str(status)] += 1
    if status == 200 and is_whole(text, stream=stream):
        told.whole[id] = TOKENS
    elif status != 200:
        await asyncio.sleep(0.05)
    return status


async def post(
    url: str, headers: Mapping[str, str], session: aiohttp.ClientSession, *, stream: bool
) -> tuple[int, str]:
    body = {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 20, "stream": stream}
    async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as answer:
        return answer.status, await answer.text()


def is_whole(text: str, *, stream: bool) -> bool:
    return not stream or text.endswith("data: [DONE]\n\n")


async def insistent(
    name: int, ports: list[int], told: Told, done: asyncio.Event, session: aiohttp.ClientSession
) -> None:
    turn = 0
    while not done.is_set():
        turn += 1
        id = f"insists-{name}-{turn}"
        told.insisted[id] = await insist(ports, id, told, session, stream=turn % 2 == 0)


async def insist(ports: list[int], id: str, told: Told, session: aiohttp.ClientSession, *, stream: bool) -> int:
    """How often it was sent. Raises AssertionError where it is never answered, or told otherwise the second time."""
    headers = {"authorization": f"Bearer {KEY}", "x-session-id": id, "idempotency-key": id}
    until_s, sent, first = time.monotonic() + RETURN_S, 0, ""
    while time.monotonic() < until_s:
        sent += 1
        status, text = 0, ""
        with suppress(aiohttp.ClientError, OSError, TimeoutError):
            status, text = await post(f"http://127.0.0.1:{ports[sent % len(ports)]}", headers, session, stream=stream)
        code = json.loads(text)["error"]["code"] if status == 409 else ""
        told.statuses[f"insisting: {status} {code}".rstrip()] += 1
        if code == "idempotency_key_used":
            return sent
        if status == 200 and is_whole(text, stream=stream):
            assert first in ("", text), f"{id} is told otherwise the second time"
            if first:
                return sent
            first = text
        await asyncio.sleep(0.0 if first else 0.2)
    raise AssertionError(f"{id} was not answered in {RETURN_S:.0f} s")
