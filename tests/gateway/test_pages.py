"""Models, health, policy, metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable

import pytest
from prometheus_client.parser import text_string_to_metric_families

from asgi import CHAT, COMPLETIONS, call, chat, completion, gateway, get
from decodeloop.gateway.app import build_app
from decodeloop.gateway.meter import Histogram, Meter
from decodeloop.gateway.settings import GatewaySettings
from decodeloop.types import Chunk, FinishReason, Request, Usage
from scripted import ScriptedUpstream, Step, plain_report, says


def test_models() -> None:
    upstream = ScriptedUpstream(says("x"), models=("tiny", "org/big"))
    tiny, big = get(upstream, "/v1/models").json()["data"]
    assert tiny == {
        "id": "tiny", "object": "model", "created": 1_700_000_000, "owned_by": "decodeloop", "max_model_len": 2048,
    }  # fmt: skip
    assert get(upstream, "/v1/models/org/big").json() == big


def test_a_model_is_served_by_the_upstream_that_has_it() -> None:
    async def run() -> None:
        first, second = ScriptedUpstream(says("1")), ScriptedUpstream(says("2"), models=("other", "tiny"))
        app = build_app(GatewaySettings(), {"first": first, "second": second})
        for model, text in (("tiny", "1"), ("other", "2")):
            body = (await call(app, "POST", CHAT, {**chat(), "model": model})).json()
            assert (body["model"], body["choices"][0]["message"]["content"]) == (model, text)
        assert [each["id"] for each in (await call(app, "GET", "/v1/models")).json()["data"]] == ["tiny", "other"]
        first.is_ready = False
        assert (await call(app, "POST", CHAT, chat())).json()["choices"][0]["message"]["content"] == "2"
        assert (await call(app, "GET", "/ready")).status == 200, "another serves its models"
        second.is_ready = False
        assert (await call(app, "GET", "/ready")).status == 503

    asyncio.run(run())
    with pytest.raises(ValueError, match="at least one"):
        build_app(GatewaySettings(), {})


def test_an_upstream_that_does_not_start_takes_the_others_down() -> None:
    class Broken(ScriptedUpstream):
        async def start(self) -> None:
            raise OSError("no such device")

    async def run() -> None:
        first = ScriptedUpstream(says("x"))
        app = build_app(GatewaySettings(), {"first": first, "second": Broken(says("x"))})
        sent = []

        async def receive() -> dict[str, str]:
            return {"type": "lifespan.startup"}

        async def send(message: dict[str, str]) -> None:
            sent.append(message["type"])

        with pytest.raises(OSError, match="no such device"):
            await app({"type": "lifespan", "state": {}}, receive, send)
        assert sent == ["lifespan.startup.failed"]
        assert first.stopped

    asyncio.run(run())


def test_policy() -> None:
    (view,) = get(ScriptedUpstream(says("x")), "/v1/policy").json()["data"]
    assert view["upstream"] == "first"
    assert view["policy"] == {"policy": "scripted", "draft_len": 4}
    assert view["load"]["kv_free_fraction"] == 0.75


def test_welcome() -> None:
    got = get(ScriptedUpstream(says("x")), "/")
    assert got.headers["content-type"].startswith("text/plain")
    assert b"/v1/chat/completions" in got.body


# Metrics


def samples(text: bytes) -> dict[str, float]:
    """name{sorted labels without engine and model} -> value"""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = {name: value for name, value in sample.labels.items() if name not in ("engine", "model_name")}
            inner = ",".join(f'{name}="{value}"' for name, value in sorted(labels.items()))
            found[f"{sample.name}{{{inner}}}" if inner else sample.name] = sample.value
    return found


def scraped(upstream: ScriptedUpstream, *bodies: tuple[str, dict[str, object]]) -> dict[str, float]:
    async def run() -> bytes:
        app = gateway(upstream)
        for path, body in bodies:
            await call(app, "POST", path, body)
        got = await call(app, "GET", "/metrics")
        assert got.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        return got.body

    return samples(asyncio.run(run()))


def test_counts_of_answers_under_both_names() -> None:
    got = scraped(
        ScriptedUpstream(says("a", "b", "c")), (CHAT, chat()), (CHAT, chat(stream=True)), (COMPLETIONS, completion(n=2))
    )
    for ours, vllms, value in (
        ("prompt_tokens_total", "prompt_tokens_total", 21),
        ("generation_tokens_total", "generation_tokens_total", 12),
        ("prefix_cache_queries_total", "prefix_cache_queries_total", 21),
        ("prefix_cache_hits_total", "prefix_cache_hits_total", 12),
        ("verified_drafts_total", "spec_decode_num_drafts_total", 6),
        ("verified_tokens_total", "spec_decode_num_draft_tokens_total", 24),
        ("accepted_tokens_total", "spec_decode_num_accepted_tokens_total", 15),
        ('choices_finished_total{finished_reason="stop"}', 'request_success_total{finished_reason="stop"}', 4),
        ("time_to_first_token_seconds_count", "time_to_first_token_seconds_count", 4),
        ("step_gap_seconds_count", "inter_token_latency_seconds_count", 8),
        ("time_per_output_token_seconds_count", "request_time_per_output_token_seconds_count", 4),
        ("request_latency_seconds_count", "e2e_request_latency_seconds_count", 4),
        ("queue_time_seconds_count", "request_queue_time_seconds_count", 3),
        ("kv_cache_usage_perc", "kv_cache_usage_perc", 0.25),
        ("num_requests_running", "num_requests_running", 0),
        ("num_requests_waiting", "num_requests_waiting", 0),
    ):
        assert got[f"decodeloop_{ours}"] == value, ours
        assert got[f"vllm:{vllms}"] == value, vllms
    assert got["decodeloop_drafted_tokens_total"] == 27
    assert got['decodeloop_steps_total{reason="fixed"}'] == 6
    assert got['decodeloop_phase_seconds_total{phase="verify"}'] == pytest.approx(0.024)
    assert got['decodeloop_phase_seconds_total{phase="queue"}'] == pytest.approx(0.003)
    assert got['decodeloop_http_responses_total{method="POST",route="/v1/chat/completions",status="200"}'] == 2


def test_positions_add_up_to_the_accepted_tokens() -> None:
    got = scraped(ScriptedUpstream(says("a")), (CHAT, chat()))
    positions = [got[f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{place}"}}'] for place in range(4)]
    assert positions == [2, 1, 1, 1]  # of a step that accepted 4 and one that accepted 1
    assert sum(positions) == got["vllm:spec_decode_num_accepted_tokens_total"]


def test_a_plain_answer_counts_no_drafts() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="a", finish_reason=FinishReason.LENGTH, usage=Usage(1, 0, 1), report=plain_report(request))

    got = scraped(ScriptedUpstream(script), (CHAT, chat()))
    assert got["vllm:spec_decode_num_drafts_total"] == 0
    assert got['vllm:request_success_total{finished_reason="length"}'] == 1


def test_failures_and_unknown_urls_are_counted_under_few_names() -> None:
    upstream = ScriptedUpstream(lambda _: [Chunk(text="x"), ValueError("bug")])
    got = scraped(upstream, (CHAT, chat()), ("/nothing/1", {}), ("/nothing/2", {}))
    assert got['decodeloop_choices_finished_total{finished_reason="failed"}'] == 1
    assert not any(name.startswith("vllm:request_success_total") for name in got)
    assert got['decodeloop_http_responses_total{method="POST",route="unmatched",status="404"}'] == 2


def test_the_upstreams_own_counters() -> None:
    own = {"steps_total": 5.0, 'step_seconds_total{phase="draft"}': 0.5, "preemptions_total": 0.0, "threads": 2.0}
    got = scraped(ScriptedUpstream(says("x"), counters=own))
    assert got["decodeloop_engine_steps_total"] == 5
    assert got['decodeloop_engine_step_seconds_total{phase="draft"}'] == 0.5
    assert got["decodeloop_engine_threads"] == 2


def test_no_series_appears_twice_and_all_have_a_type() -> None:
    async def run() -> str:
        first, second = ScriptedUpstream(says("1")), ScriptedUpstream(says("2"), models=("b", "c"))
        app = build_app(GatewaySettings(), {"first": first, "second": second})
        for model in ("tiny", "b", "c"):
            await call(app, "POST", CHAT, {**chat(), "model": model})
        return (await call(app, "GET", "/metrics")).body.decode()

    text = asyncio.run(run())
    series = [line.rsplit(" ", 1)[0] for line in text.splitlines() if not line.startswith("#")]
    assert len(series) == len(set(series))
    typed = re.findall(r"^# TYPE (\S+)", text, re.M)
    assert len(typed) == len(set(typed))
    assert 'vllm:prompt_tokens_total{engine="second",model_name="c"} 7' in text


def test_a_histograms_buckets() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 9.0):
        histogram.observe(value)
    assert histogram.counts == [2, 1, 1]
    assert histogram.sum == 12.0


def test_time_per_token_leaves_out_what_the_first_piece_held() -> None:
    """5 tokens at 1 s, then 2 and 2 until 3 s: 2 s for 4 tokens."""
    meter = Meter(clock=lambda: 0.0)
    request = meter.request("u", "m", arrived_s=0.5, choices=1)
    for now_s, tokens in ((1.0, 5), (2.0, 2), (3.0, 2)):
        request.chunk(Chunk(token_ids=tuple(range(tokens))), now_s)
    request.chunk(Chunk(finish_reason=FinishReason.STOP), 3.5)
    model = meter.models["u", "m"]
    assert model.time_per_output_token.sum == 0.5
    assert model.time_to_first_token.sum == 0.5
    assert model.step_gap.sum == 2.0
    assert model.latency.sum == 3.0
    with request:
        pass
    assert model.finished == {"stop": 1}
