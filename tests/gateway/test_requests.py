"""From a body to what the upstream is asked."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, ask, chat, completion
from asking import asked, refused
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.body import IGNORED, NEUTRAL, read_object
from decodeloop.types import (
    RequestClass,
    RequestRefused,
    SamplingParams,
    Slo,
    Speculation,
    SpeculationMode,
)
from scripted import ScriptedUpstream, says


def test_nothing_asked_is_openais_defaults() -> None:
    assert asked(COMPLETIONS, completion()).params == SamplingParams(max_tokens=16)
    request = asked(CHAT, chat())
    assert request.params == SamplingParams()
    assert request.speculation == Speculation()
    assert request.request_class is RequestClass.GENERAL_CHAT
    assert request.priority == "interactive"
    assert request.n == 1
    assert request.arrived_s > 0


def test_every_knob_arrives() -> None:
    request = asked(
        COMPLETIONS,
        completion(
            n=2, seed=2**53 - 1, stop=["a", "b"], max_tokens=9, min_tokens=3, temperature=0, top_p=0.5, top_k=-1,
            min_p=0.25, presence_penalty=-2, frequency_penalty=2, repetition_penalty=1.5,
            logit_bias={"5": -100, "7": 1.5}, logprobs=3, ignore_eos=True, stop_token_ids=[4],
            allowed_token_ids=[1, 2], bad_token_ids=[3], best_of=2, user="u",
        ),
    )  # fmt: skip
    assert request.params == SamplingParams(
        temperature=0.0, top_p=0.5, top_k=0, min_p=0.25, repetition_penalty=1.5, presence_penalty=-2.0,
        frequency_penalty=2.0, logit_bias=((5, -100.0), (7, 1.5)), allowed_token_ids=(1, 2), banned_token_ids=(3,),
        max_tokens=9, min_tokens=3, stop=("a", "b"), stop_token_ids=(4,), ignore_eos=True, logprobs=3,
    )  # fmt: skip
    assert (request.n, request.seed) == (2, 2**53 - 1)


def test_one_stop_string_and_both_names_of_max_tokens() -> None:
    params = asked(CHAT, chat(stop="END", max_completion_tokens=4, max_tokens=4)).params
    assert (params.stop, params.max_tokens) == (("END",), 4)


def test_chat_logprobs_count_the_alternatives() -> None:
    assert asked(CHAT, chat(logprobs=True)).params.logprobs == 0
    assert asked(CHAT, chat(logprobs=True, top_logprobs=20)).params.logprobs == 20
    assert asked(CHAT, chat(logprobs=False, top_logprobs=0)).params.logprobs is None


@pytest.mark.parametrize("body", [{}, {"seed": None}, {"seed": -1}])
def test_no_seed_is_a_random_one_that_the_answer_returns(body: dict[str, Any]) -> None:
    upstream = ScriptedUpstream(says("x"))
    seeds = [ask(upstream, CHAT, chat(**body)).json()["decodeloop"]["seed"] for _ in range(3)]
    assert seeds == [request.seed for request in upstream.requests]
    assert len(set(seeds)) == 3
    assert all(0 <= seed < 2**53 for seed in seeds)


def test_null_is_absent_everywhere() -> None:
    fields = ["n", "stop", "max_tokens", "temperature", "logit_bias", "response_format", "stream_options", "tools"]
    fields += ["seed", "stream", "logprobs", "top_logprobs", "decodeloop", "tool_choice", *IGNORED, *NEUTRAL]
    assert asked(CHAT, chat(**dict.fromkeys(fields))).params == SamplingParams()


def test_no_model_is_the_first_one() -> None:
    assert asked(COMPLETIONS, {"prompt": "Hi"}).model == "tiny"


@pytest.mark.parametrize(
    ("prompt", "engine"),
    [("", ""), ("Hi", "Hi"), ([1, 2], (1, 2)), (["a"], "a"), ([[3]], (3,))],
)
def test_prompts(prompt: Any, engine: Any) -> None:
    assert asked(COMPLETIONS, completion(prompt=prompt)).prompt == engine


@pytest.mark.parametrize("prompt", [None, [], [[]], {}, 5, [1, "a"], [1.5], [True], ["a", [1], None], [-1], [2**31]])
def test_bad_prompts(prompt: Any) -> None:
    assert refused(COMPLETIONS, completion(prompt=prompt))["param"].startswith("prompt")


# The `decodeloop` field and its headers


def test_speculation_is_controlled_per_request() -> None:
    request = asked(
        CHAT,
        chat(
            decodeloop={
                "speculation": "force", "draft_len": 5, "drafter": "suffix", "class": "code", "priority": "batch",
                "deadline_ms": 1500,
            }
        ),
        {"x-slo-ttft-ms": "200", "x-slo-tpot-ms": "12.5"},
    )  # fmt: skip
    assert request.speculation == Speculation(SpeculationMode.FORCE, 5, "suffix")
    assert request.request_class is RequestClass.CODE_SYNTHESIS
    assert (request.priority, request.deadline_ms, request.slo) == ("batch", 1500.0, Slo(200.0, 12.5))
    assert asked(CHAT, chat(decodeloop={"class": "sql"})).request_class is RequestClass.SQL
    assert asked(CHAT, chat(decodeloop={"draft_len": 0})).speculation.draft_len == 0
    assert asked(CHAT, chat(decodeloop={"speculation": "off"})).speculation.mode is SpeculationMode.OFF


@pytest.mark.parametrize(
    ("field", "param", "told"),
    [
        ({"depth": 3}, "decodeloop.depth", "choose from speculation, draft_len, drafter, class"),
        ({"speculation": "on"}, "decodeloop.speculation", "auto, off, force"),
        ({"speculation": ""}, "decodeloop.speculation", "auto, off, force"),
        ({"speculation": True}, "decodeloop.speculation", "bool"),
        ({"speculation": "off", "draft_len": 2}, "decodeloop.speculation", "draft_len"),
        ({"speculation": "off", "drafter": "ngram"}, "decodeloop.speculation", "drafter"),
        ({"speculation": "force", "draft_len": 0}, "decodeloop.draft_len", "above 0"),
        ({"draft_len": -1}, "decodeloop.draft_len", ">= 0"),
        ({"draft_len": 2.5}, "decodeloop.draft_len", "float"),
        ({"class": "poetry"}, "decodeloop.class", "creative_writing"),
        ({"priority": "high"}, "decodeloop.priority", "interactive, batch"),
        ({"deadline_ms": 0}, "decodeloop.deadline_ms", "> 0"),
        ("fast", "decodeloop", "object"),
    ],
)
def test_bad_speculation(field: Any, param: str, told: str) -> None:
    error = refused(CHAT, chat(decodeloop=field))
    assert error["param"] == param
    assert told in error["message"]


@pytest.mark.parametrize("value", ["", "fast", "0", "-1", "nan", "inf"])
def test_bad_slo_headers(value: str) -> None:
    got = ask(ScriptedUpstream(says("x")), CHAT, chat(), {"x-slo-tpot-ms": value})
    assert (got.status, got.json()["error"]["param"]) == (400, "x-slo-tpot-ms")


# Ranges and unknown fields


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("n", 0, ">= 1"), ("n", "1", "got `str`"), ("n", True, "got `bool`"), ("n", 1.5, "got `float`"),
        ("n", 129, "128"), ("n", 10**30, "<="),
        ("seed", -2, ">= -1"), ("seed", 2**53, "<="), ("seed", 1.5, "int"),
        ("temperature", -0.1, ">= 0"), ("temperature", 2.1, "<= 2"), ("temperature", "hot", "float"),
        ("temperature", 10**400, "range"),
        ("top_p", 0, "> 0"), ("top_p", 1.1, "<= 1"), ("top_k", -2, ">= -1"), ("min_p", 1.1, "<= 1"),
        ("presence_penalty", 3, "<= 2"), ("frequency_penalty", -3, ">= -2"), ("repetition_penalty", 0, ">= 0.01"),
        ("max_tokens", 0, ">= 1"), ("max_completion_tokens", -5, ">= 1"), ("min_tokens", -1, ">= 0"),
        ("min_tokens", 17, "above max_tokens"),
        ("stop", 5, "str"), ("stop", "", "length"), ("stop", ["a"] * 17, "16"), ("stop", ["a", 1], "int"),
        ("logit_bias", {"a": 1}, "'a' is not a token id"), ("logit_bias", {"-1": 1}, "'-1'"),
        ("logit_bias", {"1": 101}, "<= 100"), ("logit_bias", {"²": 1}, "'²'"), ("logit_bias", [1], "object"),
        ("logit_bias", {"9" * 11: 1}, "token id"),
        ("logprobs", 21, "<= 20"), ("logprobs", True, "bool"), ("best_of", 3, "equal n"),
        ("allowed_token_ids", [], "length"), ("stop_token_ids", [-1], ">= 0"), ("bad_token_ids", ["a"], "str"),
        ("stream", "yes", "bool"), ("stream_options", {"include_usage": True}, "stream to be true"),
        ("echo", True, "not supported"), ("suffix", "x", "not supported"), ("use_beam_search", True, "not supported"),
        ("priority", 3, "decodeloop.priority"), ("add_special_tokens", False, "true here"),
    ],
)  # fmt: skip
def test_each_bad_value_is_named(field: str, value: Any, told: str) -> None:
    error = refused(COMPLETIONS, completion(**{field: value}))
    assert error["param"].split("[")[0] == field
    assert told in error["message"]
    assert len(error["message"]) < 300


def test_contradictions() -> None:
    assert refused(CHAT, chat(max_tokens=3, max_completion_tokens=4))["param"] == "max_tokens"
    assert refused(CHAT, chat(top_logprobs=2))["param"] == "top_logprobs"
    assert refused(COMPLETIONS, completion(prompt=["a"] * 65, n=2))["param"] == "n"
    assert refused(COMPLETIONS, completion(prompt=["a"] * 3), limits=Limits(max_choices=2))["param"] == "prompt"
    assert refused(CHAT, chat(stream=True, stream_options={"x": 1}))["param"] == "stream_options.x"


def test_unknown_fields_are_named_and_near_ones_suggested() -> None:
    error = refused(CHAT, chat(temprature=1))
    assert (error["param"], error["code"]) == ("temprature", "unknown_parameter")
    assert "did you mean 'temperature'?" in error["message"]
    assert refused(CHAT, chat(api_base="http://x"))["param"] == "api_base"
    assert refused(COMPLETIONS, completion(messages=[]))["param"] == "messages"
    assert refused(CHAT, chat(prompt="x"))["param"] == "prompt"
    assert len(refused(CHAT, chat(**{"x" * 5000: 1}))["message"]) < 200


def test_harmless_fields_are_accepted() -> None:
    extras = {name: {"any": "thing"} for name in IGNORED}
    neutral = {name: values[0] for name, values in NEUTRAL.items() if values}
    assert asked(CHAT, chat(**extras, **neutral, add_special_tokens=False)).params == SamplingParams()


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"1", b'"x"', b"null", b'{"a":1}{', b'\xef\xbb\xbf{"model":"tiny"}', b"{'a':1}",
        b'{"prompt":"\xff"}', b'{"prompt":"\\ud800"}', b'{"temperature":NaN}', b'{"temperature":1e999}',
        b"[" * 100_000, b'{"a":' * 100_000,
    ],
)  # fmt: skip
def test_bodies_that_are_no_json_object(raw: bytes) -> None:
    refused(COMPLETIONS, raw)
    refused(CHAT, raw)


def test_nesting_is_bounded() -> None:
    def nested(depth: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for _ in range(depth):
            value = {"x": value}
        return value

    assert "nested" in refused(CHAT, chat(metadata=nested(70)))["message"]
    assert "nested" in refused(CHAT, chat(guided_json=nested(9)), limits=Limits(max_json_depth=9))["message"]
    assert asked(CHAT, chat(guided_json=nested(60)))


def test_the_bound_on_nesting_is_exact_beside_many_shallow_values() -> None:
    wide: list[Any] = [{}] * 40
    assert read_object(json.dumps({"wide": wide, "deep": [[{}]]}).encode(), max_depth=4)
    assert read_object(b'{"deep":[[{}]]}', max_depth=4)
    for raw in (json.dumps({"wide": wide, "deep": [[[{}]]]}).encode(), b'{"deep":[[[{}]]]}'):
        with pytest.raises(RequestRefused, match="nested deeper than 4 levels"):
            read_object(raw, max_depth=4)
