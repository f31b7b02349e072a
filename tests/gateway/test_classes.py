"""A request that declares no class gets the classifier's; a declared one is taken at its word."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from asgi import call
from decodeloop.cli.classes import open_classifier
from decodeloop.gateway.app import build_app
from decodeloop.gateway.settings import GatewaySettings, Limits
from decodeloop.gateway.wire.envelope import read_envelope
from decodeloop.types import ChatPrompt, RequestClass
from scripted import ScriptedUpstream, says

SQL = "Write a SQL query that returns the customers without orders"


def class_of(path, body, classify):
    upstream = ScriptedUpstream(says("x"))
    app = build_app(GatewaySettings(), {"first": upstream}, classify=classify)
    got = asyncio.run(call(app, "POST", path, orjson.dumps(body)))
    assert got.status == 200, got.body
    return upstream.requests[0].request_class


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": SQL}]}),
        ("/v1/completions", {"prompt": SQL}),
    ],
)
def test_undeclared_classes_are_guessed_and_declared_ones_are_not(path, body):
    classify = open_classifier()
    assert class_of(path, body, classify) is RequestClass.SQL
    declared = {**body, "decodeloop": {"class": "creative"}}
    assert class_of(path, declared, classify) is RequestClass.CREATIVE_WRITING


def test_the_classifier_sees_the_prompt_and_nothing_else():
    seen = []

    def classify(prompt):
        seen.append(prompt)
        return RequestClass.TRANSLATION

    class_of("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.5}, classify)
    assert seen == [ChatPrompt(({"role": "user", "content": "hi"},), tool_choice="none")]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [{"role": "user", "content": SQL}]}, RequestClass.SQL),
        ({"messages": [{"role": "user", "content": SQL}], "decodeloop": {"class": "chat"}}, RequestClass.GENERAL_CHAT),
        ({"prompt": [SQL, "another"]}, RequestClass.SQL),
        ({"prompt": [1, 2, 3]}, RequestClass.GENERAL_CHAT),
        ({"messages": ["no message", {"role": "user"}, {"role": "user", "content": 7}]}, RequestClass.GENERAL_CHAT),
        ({"messages": [{"role": "user", "content": "go"}], "tools": [{"type": "function"}]}, RequestClass.TOOL_CALL),
        ({}, RequestClass.GENERAL_CHAT),
    ],
)
def test_so_is_what_another_engine_will_read(body, expected):
    assert read_envelope(orjson.dumps(body), "m", Limits(), open_classifier()).request_class is expected
