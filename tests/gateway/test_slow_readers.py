"""A client that reads slowly holds its upstream back: nothing piles up between them."""

from __future__ import annotations

import asyncio

from asgi import CHAT, COMPLETIONS, chat, completion, connect, gateway
from scripted import ScriptedUpstream, says


def test_a_slow_reader_holds_the_upstream_back() -> None:
    async def run() -> None:
        upstream = ScriptedUpstream(says(*map(str, range(1000))))
        connection = connect(gateway(upstream, heartbeat_s=0.001), "POST", CHAT, chat(stream=True))
        connection.writable.clear()
        await asyncio.sleep(0.05)  # heartbeats are due, too
        assert upstream.yielded == 1
        connection.writable.set()
        got = await connection.response()
        texts = [event["choices"][0]["delta"].get("content", "") for event in got.events()[:-1]]
        assert "".join(texts) == "".join(map(str, range(1000)))

    asyncio.run(run())


def test_a_slow_reader_of_several_prompts_holds_all_back() -> None:
    async def run() -> None:
        upstream = ScriptedUpstream(says(*map(str, range(300))))
        body = completion(prompt=["a", "b", "c"], stream=True)
        connection = connect(gateway(upstream), "POST", COMPLETIONS, body)
        connection.writable.clear()
        await asyncio.sleep(0.05)
        assert upstream.yielded <= 6
        connection.writable.set()
        got = await connection.response()
        for choice in range(3):
            texts = [
                event["choices"][0]["text"] for event in got.events()[:-1] if event["choices"][0]["index"] == choice
            ]
            assert "".join(texts) == "".join(map(str, range(300)))

    asyncio.run(run())
