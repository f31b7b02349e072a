"""Server-sent events, byte for byte."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import orjson
import pytest

from asgi import CHAT, COMPLETIONS, Response, ask, call, chat, completion, gateway
from decodeloop.gateway.settings import Limits
from decodeloop.types import Chunk, FinishReason, Request, RequestRefused, ToolCallDelta, Usage
from scripted import FOREVER, ScriptedUpstream, Step, finish, plain_report, report, says

HEARTBEAT = b": keep-alive\n\n"


def scripted(*steps: Step, end: bool = True) -> ScriptedUpstream:
    def script(request: Request) -> Iterable[Step]:
        yield from steps
        if end:
            yield finish(request)

    return ScriptedUpstream(script)


def test_chat_bytes() -> None:
    got = ask(ScriptedUpstream(says("Hé", "llo\n\n")), CHAT, chat(stream=True, seed=5))
    assert got.status == 200
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got.headers["cache-control"] == "no-cache"
    assert got.headers["x-accel-buffering"] == "no"
    first = got.events()[0]
    head = f'"id":"{first["id"]}","object":"chat.completion.chunk","created":{first["created"]},"model":"tiny"'
    decodeloop = (
        '"metrics":{"speculative_decoding":{"mean_acceptance_length":3.5,"draft_acceptance_rate":0.625,'
        '"acceptance_histogram":[0,1,0,0,1],"num_spec_steps":2,"num_accepted_draft_tokens":5,"num_draft_tokens":8,'
        '"num_spec_tokens":4}},'
        '"decodeloop":{"seed":5,"class":"general_chat","drafter":"ngram","queue_ms":1.0,"prefill_ms":2.0,'
        '"draft_ms":0.5,"verify_ms":8.0,"sample_ms":0.25,"overhead_ms":0.125,"steps":3,"drafted":9,"verified":8,'
        '"accepted":5,"discarded":0,"reasons":{"fixed":2,"no_proposal":1},"finish_reasons":["stop"]}'
    )
    choice = '"choices":[{"index":0,"delta":'
    rest = ',"logprobs":null,"finish_reason":null}]'
    expected = "".join(
        f"data: {line}\n\n"
        for line in (
            f'{{{head},{choice}{{"role":"assistant","content":""}}{rest}}}',
            f'{{{head},{choice}{{"content":"Hé"}}{rest}}}',
            f'{{{head},{choice}{{"content":"llo\\n\\n"}}{rest}}}',
            f'{{{head},{choice}{{}},"logprobs":null,"finish_reason":"stop","stop_reason":null}}],{decodeloop}}}',
            "[DONE]",
        )
    )
    assert got.body == expected.encode()


def test_completion_with_usage() -> None:
    got = ask(
        ScriptedUpstream(says("a", "b")), COMPLETIONS, completion(stream=True, stream_options={"include_usage": True})
    )
    *pieces, usage, done = got.events()
    assert done == "[DONE]"
    assert [piece["usage"] for piece in pieces] == [None, None, None]
    assert [piece["choices"][0]["text"] for piece in pieces] == ["a", "b", ""]
    assert not any("decodeloop" in piece or "metrics" in piece for piece in pieces)
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 7,
        "completion_tokens": 2,
        "total_tokens": 9,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert usage["decodeloop"]["steps"] == 3
    assert usage["metrics"]["speculative_decoding"]["num_spec_steps"] == 2


def test_without_include_usage_no_chunk_lacks_choices_and_none_has_usage() -> None:
    *pieces, done = ask(ScriptedUpstream(says("a")), CHAT, chat(stream=True)).events()
    assert all(piece["choices"] and "usage" not in piece for piece in pieces)
    assert done == "[DONE]"


def test_continuous_usage_counts_up() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="a", token_ids=(1, 2), usage=Usage(prompt=7, cached=3))
        yield Chunk(text="b", token_ids=(3,))
        yield Chunk(finish_reason=FinishReason.STOP, usage=Usage(7, 3, 3), report=report(request))

    options = {"include_usage": True, "continuous_usage_stats": True}
    *pieces, usage, _ = ask(
        ScriptedUpstream(script), COMPLETIONS, completion(stream=True, stream_options=options)
    ).events()
    seen = [(piece["usage"]["prompt_tokens"], piece["usage"]["completion_tokens"]) for piece in [*pieces, usage]]
    assert seen == [(7, 2), (7, 3), (7, 3), (7, 3)]


def test_a_plain_answer_has_no_metrics_object() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="a", finish_reason=FinishReason.STOP, usage=Usage(1, 0, 1), report=plain_report(request))

    last = ask(ScriptedUpstream(script), CHAT, chat(stream=True)).events()[-2]
    assert last["decodeloop"]["drafter"] is None
    assert "metrics" not in last


def test_n_choices_open_and_finish_each_by_itself() -> None:
    *pieces, _ = ask(ScriptedUpstream(says("x", "y")), CHAT, chat(stream=True, n=2)).events()
    for index in (0, 1):
        own = [piece["choices"][0] for piece in pieces if piece["choices"][0]["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in own) == "xy"
        assert [choice["finish_reason"] for choice in own] == [None, None, None, "stop"]
    assert "metrics" not in pieces[-1]
    assert pieces[-1]["decodeloop"]["finish_reasons"] == ["stop", "stop"]


def test_several_prompts_are_numbered_through() -> None:
    upstream = ScriptedUpstream(says("x"))
    body = completion(prompt=["a", [1, 2]], n=2, stream=True, stream_options={"include_usage": True})
    *pieces, usage, _ = ask(upstream, COMPLETIONS, body).events()
    assert sorted(piece["choices"][0]["index"] for piece in pieces if piece["choices"][0]["finish_reason"]) == [
        0,
        1,
        2,
        3,
    ]
    assert [request.prompt for request in upstream.requests] == ["a", (1, 2)]
    assert len({request.id for request in upstream.requests}) == 2
    assert len({request.seed for request in upstream.requests}) == 1
    assert usage["usage"]["prompt_tokens"] == 14
    assert usage["usage"]["completion_tokens"] == 4
    assert usage["decodeloop"]["steps"] == 6
    assert usage["decodeloop"]["reasons"] == {"fixed": 4, "no_proposal": 2}


def test_reasoning_and_tool_calls() -> None:
    upstream = scripted(
        Chunk(reasoning="hm"),
        Chunk(tool_calls=(ToolCallDelta(0, "call_1", "look", ""),)),
        Chunk(tool_calls=(ToolCallDelta(0, arguments='{"a":'), ToolCallDelta(0, arguments="1}"))),
        Chunk(tool_calls=(ToolCallDelta(1, "call_2", "see", "{}"),)),
    )
    tools = [{"type": "function", "function": {"name": "look"}}]
    *pieces, _ = ask(upstream, CHAT, chat(stream=True, tools=tools)).events()
    deltas = [piece["choices"][0]["delta"] for piece in pieces]
    assert deltas[1] == {"reasoning_content": "hm", "reasoning": "hm"}
    assert deltas[2]["tool_calls"] == [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": ""}}
    ]
    assert deltas[3]["tool_calls"] == [
        {"index": 0, "function": {"arguments": '{"a":'}},
        {"index": 0, "function": {"arguments": "1}"}},
    ]
    assert deltas[4]["tool_calls"][0]["index"] == 1
    single = ask(upstream, CHAT, chat(stream=True, tools=tools, parallel_tool_calls=False)).events()[:-1]
    calls = [call for piece in single for call in piece["choices"][0]["delta"].get("tool_calls", [])]
    assert {call["index"] for call in calls} == {0}


def test_pieces_with_nothing_to_say_are_not_sent() -> None:
    upstream = scripted(Chunk(token_ids=(1,)), Chunk(text="é", token_ids=(2,)), Chunk(token_ids=(3,)))
    texts = [piece["choices"][0]["text"] for piece in ask(upstream, COMPLETIONS, completion(stream=True)).events()[:-1]]
    assert texts == ["é", ""]
    with_ids = ask(upstream, COMPLETIONS, completion(stream=True, return_token_ids=True)).events()[:-1]
    assert [piece["choices"][0]["token_ids"] for piece in with_ids] == [[1], [2], [3], []]


def test_a_last_chunk_without_content_still_carries_the_report() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="a", finish_reason=FinishReason.LENGTH)
        yield Chunk(usage=Usage(1, 0, 1), report=report(request))

    *_, last, _ = ask(ScriptedUpstream(script), CHAT, chat(stream=True)).events()
    assert last["choices"][0]["delta"] == {}
    assert last["decodeloop"]["steps"] == 3


# Failures


@pytest.mark.parametrize("error", [RequestRefused("too much", status=429), RequestRefused("broken", status=500)])
def test_a_refusal_before_the_first_chunk_is_a_status(error: RequestRefused) -> None:
    got = ask(scripted(error), CHAT, chat(stream=True))
    assert got.status == error.status
    assert got.headers["content-type"] == "application/json"
    assert got.json()["error"]["message"] == error.message


def failed_stream(got: Response) -> tuple[list[object], dict[str, object]]:
    *pieces, last = got.events()
    assert got.status == 200
    assert list(last) == ["error"]
    assert set(last["error"]) == {"message", "type", "param", "code"}
    assert b"[DONE]" not in got.body
    return pieces, last["error"]


def test_a_failure_after_it_is_an_error_event_and_no_done() -> None:
    upstream = scripted(Chunk(text="a"), RequestRefused("the engine died", status=500, code="engine_failed"))
    pieces, error = failed_stream(ask(upstream, CHAT, chat(stream=True)))
    assert len(pieces) == 2
    assert error == {"message": "the engine died", "type": "server_error", "param": None, "code": "engine_failed"}


def test_our_own_faults_tell_nothing_but_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    got = ask(scripted(Chunk(text="a"), KeyError("secret")), CHAT, chat(stream=True), {"x-request-id": "abc-1"})
    _, error = failed_stream(got)
    assert "abc-1" in str(error["message"])
    assert b"secret" not in got.body
    assert "secret" in caplog.text
    assert "abc-1" in caplog.text


def test_an_answer_that_stops_short_is_an_error() -> None:
    _, error = failed_stream(ask(scripted(Chunk(text="a"), end=False), CHAT, chat(stream=True)))
    assert "early" in str(error["message"])
    assert ask(scripted(Chunk(text="a"), end=False), CHAT, chat()).status == 502


@pytest.mark.parametrize(("reason", "status"), [(FinishReason.ERROR, 500), (FinishReason.ABORT, 503)])
def test_a_choice_that_failed_fails_the_request(reason: FinishReason, status: int) -> None:
    upstream = scripted(Chunk(text="a"), Chunk(finish_reason=reason))
    failed_stream(ask(upstream, CHAT, chat(stream=True)))
    assert ask(upstream, CHAT, chat()).status == status


def test_the_time_limit() -> None:
    limits = Limits(request_timeout_s=0.05)
    stuck = scripted(FOREVER)
    assert ask(stuck, CHAT, chat(), limits=limits).status == 504
    _, error = failed_stream(ask(scripted(Chunk(text="a"), FOREVER), CHAT, chat(stream=True), limits=limits))
    assert error["code"] == "timeout"
    assert stuck.open == 0
    own = scripted(TimeoutError("the upstream's own"))
    assert ask(own, CHAT, chat()).status == 500


# Heartbeats


def test_heartbeats_come_in_silence_only_between_events() -> None:
    upstream = scripted(0.1, Chunk(text="a"), Chunk(text="b"), 0.1)
    got = ask(upstream, CHAT, chat(stream=True), heartbeat_s=0.02)
    assert got.status == 200
    blocks = got.body.split(b"\n\n")[:-1]
    assert blocks[0] == HEARTBEAT.strip()
    spoken = [block for block in blocks if block != HEARTBEAT.strip()]
    assert all(block.startswith(b"data: ") for block in spoken)
    assert got.body.endswith(b"data: [DONE]\n\n")
    assert [event["choices"][0]["delta"].get("content") for event in got.events()[:-1]] == ["", "a", "b", None]


def test_after_a_heartbeat_a_refusal_is_an_event() -> None:
    got = ask(scripted(0.1, RequestRefused("no", status=400)), CHAT, chat(stream=True), heartbeat_s=0.02)
    assert got.body.startswith(HEARTBEAT)
    _, error = failed_stream(got)
    assert error["message"] == "no"


def test_no_heartbeats_while_events_flow() -> None:
    steps: list[Step] = [step for place in range(20) for step in (0.005, Chunk(text=str(place)))]
    assert b": keep" not in ask(scripted(*steps), CHAT, chat(stream=True), heartbeat_s=5.0).body


def test_one_prompt_that_fails_ends_the_others() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(text="a")
        yield RequestRefused("bad prompt") if request.prompt == "bad" else FOREVER

    upstream = ScriptedUpstream(script)
    failed_stream(ask(upstream, COMPLETIONS, completion(prompt=["x", "bad", "y"], stream=True)))
    assert upstream.open == 0
    assert ask(upstream, COMPLETIONS, completion(prompt=["x", "bad", "y"])).status == 400
    assert upstream.open == 0


def test_streams_run_side_by_side() -> None:
    async def run() -> None:
        app = gateway(ScriptedUpstream(says("a", "b")))
        answers = await asyncio.gather(*[call(app, "POST", CHAT, chat(stream=True)) for _ in range(50)])
        assert len({orjson.dumps(answer.events()[0]["id"]) for answer in answers}) == 50

    asyncio.run(run())
