"""The load client against real servers: ours, and others by the bytes that they send."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned import canned, head, models, says, stream, whole
from decodeloop.evaluation.client.answer import events, spread
from decodeloop.evaluation.client.dialects import dialect
from decodeloop.evaluation.client.http import Address, Client, Lost
from decodeloop.evaluation.client.load import CUT_OFF, closed_turn, open_turn
from decodeloop.evaluation.client.target import connect, growth, merged, read_metrics
from decodeloop.evaluation.plan import Arm
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.types import Chunk, FinishReason, RequestClass, Usage
from live import served
from scripted import FOREVER, ScriptedUpstream, plain_report, report
from scripted import says as upstream_says

ASK = WorkRequest(id="a", messages=({"role": "user", "content": "Hi"},), params={"max_tokens": 8})
TEXT = WorkRequest(id="t", prompt="Once", request_class=RequestClass.SQL)


def asked(answer, request=ASK, **arm):
    """What the client makes of a canned server's answer to a completion."""

    async def run():
        async with canned(lambda path, body: models() if path == "/v1/models" else answer(path, body)) as server:
            target = await connect(Arm(label="x", target=server.url, **arm))
            try:
                return await target.serve(request), server
            finally:
                target.close()

    return asyncio.run(run())


def ours(script, request=ASK, **arm):
    async def run():
        with served(ScriptedUpstream(script)) as live:
            target = await connect(Arm(label="x", target=live.url, **arm))
            answer = await target.serve(request)
            target.close()
            return answer, target, live.upstream.requests[0]

    return asyncio.run(run())


def blocks(*sizes):
    """Pieces of several tokens, as speculation makes them."""

    def script(request):
        for size in sizes:
            yield Chunk(text="ab" * size, token_ids=tuple(range(size)))
            yield 0.005
        yield Chunk(
            finish_reason=FinishReason.STOP, usage=Usage(7, 4, sum(sizes), 9, 8, 5), report=report(request, seed=3)
        )

    return script


def test_our_own_account_is_read_whole():
    answer, target, request = ours(blocks(3, 1, 5))
    assert target.dialect.name == "decodeloop"
    assert (answer.error, answer.finish_reason, answer.text) == (None, "stop", "ab" * 9)
    assert (answer.chunk_tokens, answer.exact_chunks, answer.completion_tokens) == ((3, 1, 5), True, 9)
    assert list(answer.chunk_s) == sorted(answer.chunk_s)
    assert answer.sent_s < answer.chunk_s[0] <= answer.chunk_s[-1] <= answer.ended_s
    assert (answer.prompt_tokens, answer.cached_tokens, answer.seed, answer.drafter) == (7, 4, 3, "ngram")
    assert answer.drafting is not None
    assert (answer.drafting.drafts, answer.drafting.verified, answer.drafting.accepted) == (2, 8, 5)
    assert (answer.drafting.drafted, answer.drafting.steps) == (9, 3)
    assert answer.drafting.accepted_histogram == (0, 1, 0, 0, 1)
    assert answer.times is not None
    assert (answer.times.draft_ms, answer.times.verify_ms, answer.times.queue_ms) == (0.5, 8.0, 1.0)
    assert request.request_class is RequestClass.GENERAL_CHAT


def test_plain_answers_have_no_drafts_but_an_account_of_it():
    def script(request):
        yield Chunk(text="x", token_ids=(1,))
        yield Chunk(finish_reason=FinishReason.LENGTH, usage=Usage(1, 0, 1), report=plain_report(request))

    answer, _, _ = ours(script)
    assert answer.drafting is not None
    assert (answer.drafting.drafts, answer.drafting.verified, answer.drafting.steps) == (0, 0, 3)


def test_the_class_and_the_arms_fields_reach_the_server():
    _, _, request = ours(upstream_says("x"), TEXT, fields={"temperature": 0, "decodeloop": {"speculation": "off"}})
    assert request.request_class is RequestClass.SQL
    assert (request.params.temperature, str(request.speculation.mode)) == (0.0, "off")


def test_a_failure_on_the_way_is_an_error_and_keeps_what_came():
    def script(request):
        yield Chunk(text="x", token_ids=(1,))
        yield RuntimeError("boom")

    answer, _, _ = ours(script)
    assert answer.error
    assert answer.chunk_tokens == (1,)


USAGE = {"prompt_tokens": 5, "completion_tokens": 4}


def test_pieces_without_counts_are_estimated_and_say_so():
    answer, server = asked(
        lambda *_: stream(says("a"), says("b", finish_reason="stop"), {"choices": [], "usage": USAGE})
    )
    assert (answer.chunk_tokens, answer.exact_chunks, answer.completion_tokens) == ((2, 2), False, 4)
    assert server.asked[-1][1]["stream_options"] == {"include_usage": True}
    assert answer.drafting is None


def test_running_totals_count_pieces():
    counted = [{**says(text), "usage": {"completion_tokens": n}} for text, n in (("a", 1), ("bcd", 4))]
    answer, _ = asked(lambda *_: stream(*counted, {"choices": [], "usage": USAGE}))
    assert (answer.chunk_tokens, answer.exact_chunks) == ((1, 3), True)


def test_llama_cpps_timings():
    first = {**says("a"), "timings": {"predicted_n": 1}}
    last = {**says("b", finish_reason="stop"), "timings": {"predicted_n": 4, "draft_n": 6, "draft_n_accepted": 2}}
    answer, _ = asked(lambda *_: stream(first, last, {"choices": [], "usage": USAGE}))
    assert answer.chunk_tokens == (1, 3)
    assert answer.drafting is not None
    assert (answer.drafting.drafts, answer.drafting.drafted, answer.drafting.accepted) == (None, 6, 2)


def test_texts_of_every_kind_are_content():
    tool = {"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}
    deltas = [{"role": "assistant", "content": ""}, {"reasoning_content": "hm", "reasoning": "hm"}, tool]
    made = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    answer, _ = asked(lambda *_: stream(*made, says("", finish_reason="tool_calls")))
    assert (answer.text, len(answer.chunk_s), answer.finish_reason) == ("hmf{}", 2, "tool_calls")


@pytest.mark.parametrize(
    ("answering", "error"),
    [
        (whole({"error": {"message": "busy", "code": None}}, 429), "HTTP 429: busy"),
        (whole("nonsense", 500), 'HTTP 500: "nonsense"'),
        ([head(200, content_length="900") + b"data: {", -1.0], "broke"),
        ([b"SMTP ready\r\n\r\n"], "no HTTP response"),
        (stream(says("a"), done=False), "ended before the answer did"),
        (stream(says("a"), {"error": {"message": "out of memory"}}, done=False), "out of memory"),
        (stream(says("a"), b"{oops", done=False), "not JSON"),
    ],
)
def test_what_goes_wrong_is_told(answering, error):
    answer, _ = asked(lambda *_: answering)
    assert error in (answer.error or "")


def test_a_body_may_end_with_its_connection():
    answer, _ = asked(
        lambda *_: [head(connection="close") + b'data: {"choices":[{"text":"x","finish_reason":"stop"}]}\n\n', -1.0],
        TEXT,
    )
    assert (answer.error, answer.text) == (None, "x")


def test_a_kept_connection_that_the_server_closed_is_replaced():
    async def run():
        async with canned(lambda path, _: [*whole({"path": path}), -1.0]) as server:  # says keep-alive, and hangs up
            client = Client(Address.of(server.url))
            replies = [(await client.send("GET", f"/{i}")).status for i in range(5)]
            client.close()
            return replies

    assert asyncio.run(run()) == [200] * 5


def test_a_kept_connection_that_is_closing_is_replaced():
    """Its end is known to the transport, and not yet to us."""

    async def run():
        async with canned(lambda path, _: whole({"path": path})) as server:
            client = Client(Address.of(server.url))
            await client.send("GET", "/1")
            client._idle[0]._transport.close()
            status = (await client.send("GET", "/2")).status
            client.close()
            return status

    assert asyncio.run(run()) == 200


def test_nobody_there():
    async def run():
        await connect(Arm(label="x", target="http://127.0.0.1:9"))

    with pytest.raises(Lost, match="no connection to http://127"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (models("me", "a", "b"), "serves a, b: say which"),
        (whole({"object": "list"}), "not what OpenAI's API answers"),
        (whole({"error": {"message": "who are you"}}, 401), "HTTP 401: who are you"),
    ],
)
def test_servers_that_cant_be_measured_are_refused(answer, message):
    async def run():
        async with canned(lambda *_: answer) as server:
            await connect(Arm(label="x", target=server.url))

    with pytest.raises(ValueError, match=message):
        asyncio.run(run())


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http:///v1"])
def test_addresses(url):
    with pytest.raises(ValueError, match="no http"):
        Address.of(url)
    assert Address.of("localhost:8000/v1/").url == "http://localhost:8000"
    assert Address.of("https://api.example.com/openai/v1", "k").path == "/openai"


@given(st.lists(st.text(alphabet="ab\n:", max_size=5), max_size=4), st.lists(st.integers(1, 9), max_size=9))
def test_events_however_they_are_cut(texts, cuts):
    """Comments and heartbeats between them; each event is complete when its last byte is."""
    whole_text = b"".join(b": beat\n\ndata: %d\n\n" % i for i, _ in enumerate(texts))
    pieces, at = [], 0
    for number, size in enumerate([*cuts, 10**6]):
        pieces.append((float(number), whole_text[at : at + size]))
        at += size
    found = list(events(pieces))
    assert [data for _, data in found] == [b"%d" % i for i in range(len(texts))]
    assert [t for t, _ in found] == sorted(t for t, _ in found)


@given(st.integers(0, 500), st.integers(1, 60))
def test_tokens_are_spread_evenly(tokens, pieces):
    sizes = spread(tokens, pieces)
    assert sum(sizes) == tokens
    assert max(sizes) - min(sizes) <= 1


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
