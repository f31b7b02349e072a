"""Turns of load against a real server: a closed loop keeps its level, an open one its times."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle

import pytest

from canned import canned, models
from decodeloop.evaluation.client.load import CUT_OFF, closed_turn, open_turn
from decodeloop.evaluation.client.target import connect
from decodeloop.evaluation.plan import Arm
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.types import Chunk
from live import served
from scripted import FOREVER, ScriptedUpstream
from scripted import says as upstream_says


def requests(count):
    return [WorkRequest(id=f"r{i}", prompt=f"p{i}", params={"max_tokens": 8}) for i in range(count)]


def fillers():
    return (WorkRequest(id=f"f{i}", prompt=f"f{i}", params={"max_tokens": 8}) for i in cycle(range(10**6)))


def test_a_closed_loop_keeps_its_level():
    """Measured requests run while others keep the level; what is cut off at the end is stopped at the server too."""
    most = 0
    done = []

    def script(request):
        nonlocal most
        most = max(most, upstream.open)
        yield 0.004 * (1 + len(request.id) % 3)
        yield from upstream_says("x", "y", "z")(request)

    upstream = ScriptedUpstream(script)

    async def run():
        with served(upstream) as live:
            target = await connect(Arm(label="x", target=live.url))
            turn, results = await closed_turn(target, (4.0, 2, 1, "on"), requests(12), fillers(), tell=done.append)
            target.close()
            return turn, results

    turn, results = asyncio.run(run())
    measured = [r for r in results if not r.ramp]
    assert sorted(r.id for r in measured) == sorted(r.id for r in requests(12))
    assert (turn.level, turn.block, turn.turn, turn.arm, turn.errors) == (4.0, 2, 1, "on", 0)
    assert {(r.level, r.block, r.turn, r.arm) for r in results} == {(4.0, 2, 1, "on")}
    assert most == 4
    assert 3.0 < turn.concurrency < 4.0
    assert turn.tokens >= 3 * 12
    assert turn.seconds == pytest.approx(max(r.ended_s for r in measured) - min(r.sent_s for r in measured))
    assert {r.error for r in results} <= {None, CUT_OFF}
    assert done == results
    assert upstream.open == 0


def test_one_at_a_time_has_no_ramp():
    upstream = ScriptedUpstream(upstream_says("x", "y"))

    async def run():
        with served(upstream) as live:
            target = await connect(Arm(label="x", target=live.url))
            made = await closed_turn(target, (1.0, 0, 0, "on"), requests(3), fillers())
            target.close()
            return made

    turn, results = asyncio.run(run())
    assert [r.id for r in results] == ["r0", "r1", "r2"]
    assert (turn.tokens, turn.requests) == (6, 3)


def test_a_cut_off_answer_keeps_its_tokens():
    def script(request):
        yield Chunk(text="x", token_ids=(1,))
        yield FOREVER if request.prompt not in ("f0", "p0", "p1") else 0.01
        yield from upstream_says("y")(request)

    upstream = ScriptedUpstream(script)

    async def run():
        with served(upstream) as live:
            target = await connect(Arm(label="x", target=live.url))
            made = await asyncio.wait_for(closed_turn(target, (2.0, 0, 0, "on"), requests(2), fillers()), 20)
            target.close()
            while upstream.open:
                await asyncio.sleep(0.005)
            return made

    # One place is stuck in its filler for ever; the other serves both requests, and then a filler.
    _, results = asyncio.run(run())
    cut = [r for r in results if r.error == CUT_OFF]
    assert [r.chunk_tokens for r in cut] == [(1,)] * len(cut)
    assert upstream.ends["cancelled"] + upstream.ends["closed"] == len(cut)


def test_an_open_loop_sends_on_time_whatever_becomes_of_the_answers():
    def script(request):
        yield 0.2
        yield from upstream_says("x")(request)

    async def run():
        with served(ScriptedUpstream(script)) as live:
            target = await connect(Arm(label="x", target=live.url))
            made = await open_turn(target, (50.0, 0, 0, "on"), requests(10), [0.02 * i for i in range(10)], ramp_s=0.05)
            target.close()
            return made

    turn, results = asyncio.run(run())
    assert Counter(r.ramp for r in results) == {True: 3, False: 7}
    assert all(r.sent_s >= r.due_s for r in results)
    assert turn.seconds == pytest.approx(0.13)
    assert all(r.error is None for r in results)


def test_loads_of_nothing_are_refused():
    async def run(turn):
        async with canned(lambda path, _: models()) as server:
            target = await connect(Arm(label="x", target=server.url))
            await turn(target)

    key = (1.0, 0, 0, "on")
    with pytest.raises(ValueError, match="no requests"):
        asyncio.run(run(lambda target: closed_turn(target, key, [], fillers())))
    with pytest.raises(ValueError, match="2 requests and 1 arrivals"):
        asyncio.run(run(lambda target: open_turn(target, key, requests(2), [0.0])))
    with pytest.raises(ValueError, match="leaves nothing"):
        asyncio.run(run(lambda target: open_turn(target, key, requests(1), [1.0], ramp_s=2.0)))
