"""Pools: which one, and which of its servers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asgi import CHAT, call, chat, connect
from decodeloop.gateway.app import build_app
from decodeloop.gateway.fleet import Asked, Fleet
from decodeloop.gateway.pools import PoolSettings
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.gateway.upstreams.dialects import DIALECTS
from decodeloop.gateway.upstreams.remote import RemoteSettings, read_gauges
from decodeloop.types import RequestClass, RequestRefused, SpeculationMode
from decodeloop.types.routing import Pool, Regime, Route, RouteReason, RouteRequest
from elsewhere import Elsewhere, answers, gateway_before
from scripted import ScriptedUpstream, says

PAGE = 'x 1\nvllm:num_requests_running{{engine="0",model_name="a b"}} {running}\nvllm:num_requests_waiting 2.0\n'


def test_thirty_slow_requests_in_no_time_are_spread_over_three_servers_with_stale_metrics():
    """Their metrics were read once and say nothing of what was sent since; looking again changes no count."""

    async def run() -> None:
        release = asyncio.Event()

        async def slow(*asked: Any) -> Any:
            await release.wait()
            return await answers()(*asked)

        servers = [Elsewhere(slow, metrics=PAGE.format(running=1)) for _ in range(3)]
        async with gateway_before(*servers, remote={"engine": "vllm", "poll_s": 0.1}) as app:
            connections = [connect(app, "POST", CHAT, chat(user=str(place))) for place in range(30)]
            while sum(len(server.bodies) for server in servers) < 30:
                await asyncio.sleep(0.005)
            looks = servers[0].looks
            while servers[0].looks < looks + 2:
                await asyncio.sleep(0.005)
            open_now = [server.open for server in servers]
            assert sum(open_now) == 30
            assert max(open_now) - min(open_now) <= 2
            release.set()
            got = [await connection.response() for connection in connections]
            assert {each.status for each in got} == {200}
            assert all(member.in_flight == 0 for member in app.fleet.members.values())

    asyncio.run(run())


def test_others_requests_count_too():
    """A server that someone else keeps busy is asked less."""

    async def run() -> None:
        busy, idle = (Elsewhere(answers(after_s=0.3), metrics=PAGE.format(running=n)) for n in (20, 0))
        async with gateway_before(busy, idle, remote={"engine": "vllm"}) as app:
            got = [connect(app, "POST", CHAT, chat(messages=[{"content": str(place)}])) for place in range(10)]
            await asyncio.gather(*(each.response() for each in got))
            assert (len(busy.bodies), len(idle.bodies)) == (0, 10)

    asyncio.run(run())


def test_a_conversation_stays_where_its_prefix_is():
    async def run() -> None:
        servers = [Elsewhere(answers()) for _ in range(3)]
        async with gateway_before(*servers) as app:
            for turn in range(6):
                first = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "one"}]
                later = [{"role": "user", "content": str(place)} for place in range(turn)]
                await call(app, "POST", CHAT, chat(messages=first + later))
            assert sorted(len(server.bodies) for server in servers) == [0, 0, 6]
            for place in range(60):
                await call(app, "POST", CHAT, chat(messages=[{"role": "user", "content": str(place)}]))
            assert min(len(server.bodies) for server in servers) >= 8, "others go elsewhere"

    asyncio.run(run())


def two_pools(**speculative: object) -> dict[str, PoolSettings]:
    return {
        "speculative": PoolSettings(upstreams=("fast",), regime=Regime.FIXED, **speculative),
        "plain": PoolSettings(upstreams=("steady",), regime=Regime.PLAIN),
    }


def first_that_is_not_plain(request: RouteRequest, pools: Sequence[Pool]) -> Route:
    best = next((pool for pool in pools if pool.regime is not Regime.PLAIN), pools[0])
    return Route(best.name, RouteReason.GAIN, {})


def test_fields_that_an_engine_refuses_under_speculation_go_to_the_plain_pool():
    async def run() -> None:
        fast, steady = Elsewhere(answers()), Elsewhere(answers())
        async with fast.serving() as a, steady.serving() as b:
            upstreams = {name: RemoteSettings(url, "vllm") for name, url in (("fast", a), ("steady", b))}
            app = build_app(GatewaySettings(upstreams=upstreams, pools=two_pools()), {}, route=first_that_is_not_plain)
            await app.fleet.start()
            for extra in ({}, {"min_p": 0.0}, {"logit_bias": {}}, {"min_p": 0.1}, {"logit_bias": {"3": 1.0}}):
                got = await call(app, "POST", CHAT, chat(**extra))
                asks = any(extra.values())
                assert got.headers["x-decodeloop-pool"] == ("plain" if asks else "speculative")
            await app.fleet.close()

    asyncio.run(run())


def test_one_engine_in_two_pools_has_two_regimes():
    async def run() -> None:
        upstream = ScriptedUpstream(says("x"))
        pools = {
            "fast": PoolSettings(upstreams=("own",)),
            "steady": PoolSettings(upstreams=("own",), regime=Regime.PLAIN),
        }

        def by_class(request: RouteRequest, pools: Sequence[Pool]) -> Route:
            creative = request.request_class is RequestClass.CREATIVE_WRITING
            return Route("steady" if creative else "fast", RouteReason.GAIN, {})

        app = build_app(GatewaySettings(pools=pools), {"own": upstream}, route=by_class)
        await call(app, "POST", CHAT, chat(decodeloop={"class": "creative"}))
        await call(app, "POST", CHAT, chat(decodeloop={"class": "code"}))
        assert [each.speculation.mode for each in upstream.requests] == [SpeculationMode.OFF, SpeculationMode.AUTO]

    asyncio.run(run())


def test_a_pool_at_its_ceiling_is_left_for_another_but_not_for_none():
    async def run() -> None:
        fast, steady = ScriptedUpstream(says("x")), ScriptedUpstream(says("x"))
        fast.script = lambda request: [0.2, *says("x")(request)]
        app = build_app(
            GatewaySettings(pools=two_pools(batch_ceiling=2)),
            {"fast": fast, "steady": steady},
            route=first_that_is_not_plain,
        )
        got = [connect(app, "POST", CHAT, chat()) for _ in range(4)]
        pools = [(await each.response()).headers["x-decodeloop-pool"] for each in got]
        assert pools == ["speculative", "speculative", "plain", "plain"]
        steady.is_ready = False
        got = [connect(app, "POST", CHAT, chat()) for _ in range(4)]
        assert {(await each.response()).status for each in got} == {200}

    asyncio.run(run())


def test_no_pool_that_can():
    async def run() -> None:
        upstream = ScriptedUpstream(says("x"))
        fleet = Fleet({"own": upstream}, {"only": PoolSettings(upstreams=("own",), refuses=("min_p",))})
        route = RouteRequest(request_class=RequestClass.SQL)
        with pytest.raises(RequestRefused, match="no pool that serves 'tiny' takes min_p"):
            fleet.choose(Asked(model="tiny", route=route, fields=frozenset({"min_p"})))
        upstream.is_ready = False
        with pytest.raises(RequestRefused, match="not ready"):
            fleet.choose(Asked(model="tiny", route=route))

    asyncio.run(run())


def test_settings_that_make_no_sense():
    upstream = ScriptedUpstream(says("x"))
    with pytest.raises(ValueError, match="no upstream b; choose from a"):
        Fleet({"a": upstream}, {"pool": PoolSettings(upstreams=("b",))})
    with pytest.raises(ValueError, match="at least one upstream"):
        PoolSettings(upstreams=())
    with pytest.raises(ValueError, match="must ascend"):
        PoolSettings(upstreams=("a",), gains={RequestClass.SQL: ((4, 1.0), (2, 1.1))})
    with pytest.raises(ValueError, match="choose from openai"):
        RemoteSettings("http://x", "wllm")
    for url in ("x:8000", "http://x/v1"):
        with pytest.raises(ValueError, match="url"):
            RemoteSettings(url)
    with pytest.raises(ValueError, match="called a already"):
        build_app(GatewaySettings(upstreams={"a": RemoteSettings("http://x")}), {"a": upstream})


def test_gauges_of_a_metrics_page():
    page = (
        "# HELP vllm:num_requests_running Running\n"
        'vllm:num_requests_running{engine="0",model_name="m} 9"} 3.0\n'
        'vllm:num_requests_running{engine="1"} 4.0\n'
        "vllm:num_requests_waiting 2.0 1700000000\n"
        "vllm:num_requests_waiting_by_reason 50.0\n"
        'vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.75\n'
        "vllm:num_requests_running nonsense\n"
    )
    load = read_gauges(page.encode(), DIALECTS["vllm"].gauges)
    assert (load.running, load.waiting, load.kv_free_fraction) == (7, 2, 0.25)
    assert read_gauges(b"", DIALECTS["vllm"].gauges).running == 0


def test_pools_whose_first_tokens_came_late_are_left_out_where_another_did_not():
    now = [100.0]
    fleet = Fleet(
        {name: ScriptedUpstream(says("a")) for name in ("slow", "fast")},
        {name: PoolSettings(upstreams=(name,)) for name in ("slow", "fast")},
        clock=lambda: now[0],
    )
    slow, fast = fleet.members["slow"], fleet.members["fast"]

    def way(ttft_ms: float | None) -> tuple[str, str]:
        route = fleet.route(
            Asked(model="tiny", route=RouteRequest(request_class=RequestClass.GENERAL_CHAT), ttft_ms=ttft_ms)
        )
        return route.pool, route.reason.value

    assert way(50) == ("slow", "no_gain"), "nothing is known of either"
    slow.heard(0.4, now[0])
    slow.heard(None, now[0])
    assert way(50) == ("fast", "slo")
    assert way(500) == ("slow", "no_gain")
    assert way(None) == ("slow", "no_gain")
    fast.heard(0.3, now[0])
    assert way(50) == ("slow", "no_gain"), "none was in time: all are asked"
    for _ in range(20):
        slow.heard(0.01, now[0])
    assert way(50) == ("slow", "slo")
    now[0] += 11.0
    assert way(50) == ("slow", "no_gain"), "what was long ago says nothing"


@pytest.mark.parametrize("stream", [False, True])
def test_an_objective_finds_the_pool_that_begins_in_time(stream):
    def late(request):
        return [0.05, *says("a")(request)]

    async def run():
        settings = GatewaySettings(pools={name: PoolSettings(upstreams=(name,)) for name in ("late", "soon")})
        app = build_app(settings, {"late": ScriptedUpstream(late), "soon": ScriptedUpstream(says("a"))})
        headers = {"content-type": "application/json", "x-slo-ttft-ms": "20"}
        pools = [
            (await call(app, "POST", CHAT, chat(stream=stream), headers)).headers["x-decodeloop-pool"] for _ in range(3)
        ]
        assert pools == ["late", "soon", "soon"]

    asyncio.run(run())
