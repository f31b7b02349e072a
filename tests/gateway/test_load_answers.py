"""What the load client reads in answers: of real servers, ours, and of others by the bytes that they send."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from canned import canned, head, models, says, stream, whole
from decodeloop.evaluation.client.answer import events, spread
from decodeloop.evaluation.client.target import connect
from decodeloop.evaluation.plan import Arm
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.types import Chunk, FinishReason, RequestClass, Usage
from live import served
from scripted import ScriptedUpstream, plain_report, report
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
