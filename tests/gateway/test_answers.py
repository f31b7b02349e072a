"""Whole answers of both APIs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asgi import CHAT, COMPLETIONS, ask, chat, completion
from decodeloop.gateway.wire.accounts import metrics_object
from decodeloop.types import Chunk, FinishReason, Report, Request, RequestClass, TokenLogprob, ToolCallDelta, Usage
from scripted import ScriptedUpstream, Step, finish, report, says

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def token(text: str, logprob: float, *top: TokenLogprob, raw: bytes | None = None) -> TokenLogprob:
    return TokenLogprob(1, text, text.encode() if raw is None else raw, logprob, top)


def scripted(*steps: Step) -> ScriptedUpstream:
    def script(request: Request) -> Iterable[Step]:
        yield from steps
        yield finish(request)

    return ScriptedUpstream(script)


def test_a_chat_completion() -> None:
    got = ask(ScriptedUpstream(says("Hel", "lo")), CHAT, chat(seed=5))
    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    body = got.json()
    assert body["id"].startswith("chatcmpl-")
    assert isinstance(body["created"], int)
    expected = {
        "id": body["id"],
        "object": "chat.completion",
        "created": body["created"],
        "model": "tiny",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
            }
        ],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 2,
            "total_tokens": 9,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "metrics": {
            "speculative_decoding": {
                "mean_acceptance_length": 3.5,
                "draft_acceptance_rate": 0.625,
                "acceptance_histogram": [0, 1, 0, 0, 1],
                "num_spec_steps": 2,
                "num_accepted_draft_tokens": 5,
                "num_draft_tokens": 8,
                "num_spec_tokens": 4,
            }
        },
        "decodeloop": {
            "seed": 5,
            "class": "general_chat",
            "drafter": "ngram",
            "queue_ms": 1.0,
            "prefill_ms": 2.0,
            "draft_ms": 0.5,
            "verify_ms": 8.0,
            "sample_ms": 0.25,
            "overhead_ms": 0.125,
            "steps": 3,
            "drafted": 9,
            "verified": 8,
            "accepted": 5,
            "discarded": 0,
            "reasons": {"fixed": 2, "no_proposal": 1},
            "finish_reasons": ["stop"],
        },
    }
    assert body == expected
    assert list(body) == list(expected)


def test_a_text_completion() -> None:
    body = ask(ScriptedUpstream(says("a", "b")), COMPLETIONS, completion()).json()
    assert body["id"].startswith("cmpl-")
    assert body["object"] == "text_completion"
    assert body["choices"] == [
        {"index": 0, "text": "ab", "logprobs": None, "finish_reason": "stop", "stop_reason": None}
    ]


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        (FinishReason.STOP, "stop"),
        (FinishReason.LENGTH, "length"),
        (FinishReason.TOOL_CALLS, "tool_calls"),
        (FinishReason.DEADLINE, "length"),
    ],
)
def test_finish_reasons_are_ones_clients_know_and_the_true_one_is_beside(reason: FinishReason, told: str) -> None:
    def script(request: Request) -> Iterable[Step]:
        yield finish(request, reason, stop_reason="END")

    body = ask(ScriptedUpstream(script), CHAT, chat()).json()
    assert body["choices"][0]["finish_reason"] == told
    assert body["choices"][0]["stop_reason"] == "END"
    assert body["decodeloop"]["finish_reasons"] == [reason]


def test_choices_are_sorted_and_several_have_no_metrics_object() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(index=1, text="b", finish_reason=FinishReason.LENGTH)
        yield Chunk(text="a")
        yield finish(request)

    body = ask(ScriptedUpstream(script), CHAT, chat(n=2)).json()
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [(0, "a"), (1, "b")]
    assert "metrics" not in body
    assert body["decodeloop"]["finish_reasons"] == ["stop", "length"]


def test_several_prompts() -> None:
    def script(request: Request) -> Iterable[Step]:
        yield Chunk(index=0, text=f"{request.prompt}0", finish_reason=FinishReason.STOP)
        yield Chunk(
            index=1, text=f"{request.prompt}1", finish_reason=FinishReason.STOP, usage=Usage(3, 1, 2),
            report=report(request),
        )  # fmt: skip

    body = ask(ScriptedUpstream(script), COMPLETIONS, completion(prompt=["a", "b"], n=2)).json()
    assert [choice["text"] for choice in body["choices"]] == ["a0", "a1", "b0", "b1"]
    assert body["usage"]["total_tokens"] == 10
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 2}
    assert body["decodeloop"]["verified"] == 16
    assert body["decodeloop"]["finish_reasons"] == ["stop"] * 4
    assert "metrics" not in body


def test_one_prompt_in_a_list_is_as_one_alone() -> None:
    assert "metrics" in ask(ScriptedUpstream(says("x")), COMPLETIONS, completion(prompt=["a"])).json()


def test_tool_calls_and_reasoning() -> None:
    upstream = scripted(
        Chunk(reasoning="I "),
        Chunk(reasoning="see"),
        Chunk(tool_calls=(ToolCallDelta(0, "c1", "look", '{"x"'),)),
        Chunk(tool_calls=(ToolCallDelta(0, arguments=": 1}"), ToolCallDelta(1, "c2", "see", "{}"))),
    )
    message = ask(upstream, CHAT, chat(tools=TOOLS)).json()["choices"][0]["message"]
    assert message == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "reasoning_content": "I see",
        "reasoning": "I see",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}},
            {"id": "c2", "type": "function", "function": {"name": "see", "arguments": "{}"}},
        ],
    }
    single = ask(upstream, CHAT, chat(tools=TOOLS, parallel_tool_calls=False)).json()["choices"][0]["message"]
    assert [call["id"] for call in single["tool_calls"]] == ["c1"]


def test_an_empty_answer_is_empty_text_not_null() -> None:
    assert ask(scripted(), CHAT, chat()).json()["choices"][0]["message"]["content"] == ""


SMILE = "😀".encode()
LOGPROBS = (
    token("a", -0.5, token("a", -0.5), token("b", -1.25)),
    token("bytes:\\xf0\\x9f", -1.0, token("a", -math.inf), raw=SMILE[:2]),
    token("bytes:\\x98\\x80", -2.0, raw=SMILE[2:]),
    token("z", -3.0),
)


def test_chat_logprobs() -> None:
    upstream = scripted(Chunk(text="a", logprobs=LOGPROBS[:1]), Chunk(text="😀z", logprobs=LOGPROBS[1:]))
    logprobs = ask(upstream, CHAT, chat(logprobs=True, top_logprobs=2)).json()["choices"][0]["logprobs"]
    assert upstream.requests[0].params.logprobs == 2
    assert logprobs["refusal"] is None
    assert [entry["token"] for entry in logprobs["content"]] == [each.token for each in LOGPROBS]
    assert b"".join(bytes(entry["bytes"]) for entry in logprobs["content"]).decode() == "a😀z"
    assert logprobs["content"][0]["top_logprobs"] == [
        {"token": "a", "logprob": -0.5, "bytes": [97]},
        {"token": "b", "logprob": -1.25, "bytes": [98]},
    ]
    assert logprobs["content"][1]["top_logprobs"][0]["logprob"] == -9999.0
    assert ask(upstream, CHAT, chat()).json()["choices"][0]["logprobs"] is None


def test_completion_logprobs() -> None:
    upstream = scripted(Chunk(text="a", logprobs=LOGPROBS[:1]), Chunk(text="😀z", logprobs=LOGPROBS[1:]))
    logprobs = ask(upstream, COMPLETIONS, completion(logprobs=1)).json()["choices"][0]["logprobs"]
    assert logprobs == {
        "tokens": [each.token for each in LOGPROBS],
        "token_logprobs": [-0.5, -1.0, -2.0, -3.0],
        "top_logprobs": [
            {"a": -0.5, "b": -1.25},
            {"a": -9999.0, "bytes:\\xf0\\x9f": -1.0},
            {"bytes:\\x98\\x80": -2.0},
            {"z": -3.0},
        ],
        "text_offset": [0, 1, 1, 2],
    }
    streamed = ask(upstream, COMPLETIONS, completion(logprobs=1, stream=True)).events()[:-1]
    offsets = [piece["choices"][0]["logprobs"] for piece in streamed]
    assert [each and each["text_offset"] for each in offsets] == [[0], [1, 1, 2], None]


def test_return_token_ids() -> None:
    body = ask(ScriptedUpstream(says("a", "b")), CHAT, chat(return_token_ids=True)).json()
    assert body["choices"][0]["token_ids"] == [0, 1]


def one_report(accepted: tuple[int, ...], verified: tuple[int, ...]) -> Report:
    request = Request(id="r", model="m", prompt="", params=Any, seed=0)  # type: ignore[arg-type]
    return report(
        request, request_class=RequestClass.SQL, accepted_per_step=accepted, verified_per_step=verified
    )  # fmt: skip


@given(st.lists(st.integers(1, 9).flatmap(lambda k: st.tuples(st.integers(0, k), st.just(k))), max_size=30))
def test_the_metrics_object_agrees_with_itself(steps: list[tuple[int, int]]) -> None:
    value = metrics_object(one_report(tuple(a for a, _ in steps), tuple(k for _, k in steps)))
    if not steps:
        assert value is None
        return
    assert value is not None
    object = value["speculative_decoding"]
    histogram = object["acceptance_histogram"]
    assert len(histogram) == object["num_spec_tokens"] + 1
    assert sum(histogram) == object["num_spec_steps"] == len(steps)
    assert sum(place * count for place, count in enumerate(histogram)) == object["num_accepted_draft_tokens"]
    assert object["mean_acceptance_length"] == 1 + object["num_accepted_draft_tokens"] / len(steps)
    assert object["draft_acceptance_rate"] == object["num_accepted_draft_tokens"] / object["num_draft_tokens"] <= 1
