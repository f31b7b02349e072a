"""What the load client does to a server around its answers: empties caches, and reads totals."""

from __future__ import annotations

import asyncio

import pytest

from canned import canned, models, whole
from decodeloop.evaluation.client.dialects import dialect
from decodeloop.evaluation.client.target import connect, growth, merged, read_metrics
from decodeloop.evaluation.plan import Arm
from decodeloop.evaluation.workloads.workload import WorkRequest

ASK = WorkRequest(id="a", messages=({"role": "user", "content": "Hi"},), params={"max_tokens": 8})


@pytest.mark.parametrize(("owner", "reset"), [("vllm", "POST /reset_prefix_cache"), ("sglang", "POST /flush_cache")])
def test_caches_are_emptied_each_servers_way(owner, reset):
    async def run(status):
        async with canned(lambda path, _: models(owner) if path == "/v1/models" else whole({}, status)) as server:
            target = await connect(Arm(label="x", target=server.url))
            return await target.reset()

    assert asyncio.run(run(200)) == reset
    assert asyncio.run(run(404)) == "none"


def test_a_server_without_a_reset_is_asked_not_to_use_its_cache():
    async def run():
        async with canned(lambda path, _: models("llamacpp")) as server:
            target = await connect(Arm(label="x", target=server.url))
            return await target.reset(), target.body(ASK)

    reset, body = asyncio.run(run())
    assert reset == "not used: cache_prompt False"
    assert b'"cache_prompt":false' in body


def test_totals_are_read_and_their_growth():
    page = """# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0"} 5.0
vllm:spec_decode_num_drafts_total{engine="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",position="1"} 3
decodeloop_queue_seconds_sum 1.5e-1
vllm:num_requests_running 4
process_cpu_seconds_total 9
nonsense
"""
    found = read_metrics(page)
    assert found == {
        "vllm:spec_decode_num_drafts_total": 7.0,
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="1"}': 3.0,
        "decodeloop_queue_seconds_sum": 0.15,
    }
    assert growth({"a": 1.0, "b": 5.0}, {"a": 4.0, "b": 2.0, "c": 0.0}) == {"a": 3.0, "b": 2.0}


def test_dialects_and_merging():
    assert dialect("vllm").reset
    with pytest.raises(ValueError, match="choose from decodeloop, vllm"):
        dialect("nobody")
    assert merged({"a": {"b": 1, "c": 2}, "d": 3}, {"a": {"b": 9}, "d": {"e": 1}}) == {
        "a": {"b": 9, "c": 2},
        "d": {"e": 1},
    }
