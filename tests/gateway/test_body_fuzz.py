"""Whatever is sent, the answer is 200 or an error that is the sender's, in the right shape; and it comes."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asgi import CHAT, COMPLETIONS, Response, call, chat, completion, gateway
from decodeloop.gateway.wire.body import IGNORED, NEUTRAL
from scripted import ScriptedUpstream, says

KNOWN = [
    "model",
    "stream",
    "stream_options",
    "n",
    "seed",
    "stop",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
    "allowed_token_ids",
    "bad_token_ids",
    "stop_token_ids",
    "ignore_eos",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "return_token_ids",
    "add_special_tokens",
    "priority",
    "decodeloop",
    "prompt",
    "logprobs",
    "best_of",
    "messages",
    "top_logprobs",
    "tools",
    "tool_choice",
    "parallel_tool_calls",
    "chat_template_kwargs",
]

numbers = st.integers() | st.integers(-2, 20) | st.floats(allow_nan=False, allow_infinity=False) | st.just(10**400)
texts = st.text(max_size=6) | st.sampled_from(
    ["user", "text", "function", "json_object", "auto", "required", "off", "1"]
)
keys = texts | st.sampled_from(
    ["role", "content", "type", "function", "name", "schema", "json_schema", "include_usage", "speculation", "class"]
)
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=12,
)
names = st.sampled_from(KNOWN) | st.sampled_from(sorted({*IGNORED, *NEUTRAL})) | st.text(max_size=5)
bodies = st.dictionaries(names, values, max_size=4)


def answered(path: str, raw: bytes) -> None:
    got: Response = asyncio.run(call(gateway(ScriptedUpstream(says("x"))), "POST", path, raw))
    assert got.status in (200, 400, 404), got.body
    if got.status != 200:
        assert set(got.json()["error"]) == {"message", "type", "param", "code"}
        assert len(got.body) < 2000
    elif got.headers["content-type"] == "application/json":
        assert got.json()["choices"]
    else:
        assert got.events()[-1] == "[DONE]"


@pytest.mark.parametrize(("path", "valid"), [(CHAT, chat()), (COMPLETIONS, completion())])
@settings(max_examples=250, deadline=None)
@given(changes=bodies)
def test_a_valid_body_with_any_fields_changed(path: str, valid: dict[str, Any], changes: dict[str, Any]) -> None:
    answered(path, json.dumps({**valid, **changes}).encode())


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@settings(max_examples=100, deadline=None)
@given(body=values)
def test_any_json(path: str, body: Any) -> None:
    answered(path, json.dumps(body).encode())


@settings(max_examples=100, deadline=None)
@given(raw=st.binary(max_size=60))
def test_any_bytes(raw: bytes) -> None:
    answered(CHAT, raw)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_valid_body_with_bytes_changed(data: st.DataObject) -> None:
    raw = bytearray(json.dumps(chat(stop=["é"], logit_bias={"5": 1.5}, decodeloop={"speculation": "off"})).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    answered(CHAT, bytes(raw))
