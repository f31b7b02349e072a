"""Messages, tools and constraints: from a body to what the upstream is asked."""

from __future__ import annotations

from typing import Any

import pytest

from asgi import CHAT, COMPLETIONS, chat, completion
from asking import asked, refused
from decodeloop.types import ChatPrompt, GrammarSpec

TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def test_messages_are_brought_to_what_templates_read() -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}]
    prompt = asked(
        CHAT,
        chat(
            messages=[
                {"role": "developer", "content": "Be brief."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                    "name": "u",
                },
                {"role": "assistant", "content": None, "tool_calls": calls, "refusal": None},
                {"role": "tool", "tool_call_id": "c", "content": "42"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
            ],
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "look"}},
            chat_template_kwargs={"enable_thinking": False},
        ),
    ).prompt
    assert prompt == ChatPrompt(
        messages=(
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "a\nb", "name": "u"},
            {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c", "content": "42"},
            {"role": "assistant", "content": "no"},
        ),
        tools=(TOOL,),
        tool_choice={"type": "function", "function": {"name": "look"}},
        template_kwargs={"enable_thinking": False},
    )


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([{"role": "robot", "content": "Hi"}], "messages[0].role"),
        ([{"role": {}, "content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"role": "user", "content": "a"}, {"role": "user", "content": ["x"]}], "messages[1].content[0]"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
            "messages[0].content[0].type",
        ),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "messages[0].content[0].text"),
        ([{"role": "user", "content": "x", "tool_calls": []}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [5]}], "messages[0].tool_calls[0]"),
        ([{"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}], "messages[0].tool_calls[0].function.name"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}],
            "messages[0].tool_calls[0].function.arguments",
        ),
        ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ],
)
def test_bad_messages(messages: list[Any], param: str) -> None:
    assert refused(CHAT, chat(messages=messages))["param"] == param


def test_tool_choice_defaults() -> None:
    def choice(**fields: Any) -> Any:
        prompt = asked(CHAT, chat(**fields)).prompt
        assert isinstance(prompt, ChatPrompt)
        return prompt.tool_choice

    assert choice() == "none"
    assert choice(tool_choice="auto") == "none"
    assert choice(tools=[TOOL]) == "auto"
    assert choice(tools=[TOOL], tool_choice="none") == "none"
    assert choice(tools=[TOOL], tool_choice="required") == "required"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": ["look"]}, "tools[0]"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [TOOL, {"type": "function"}]}, "tools[1].function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": []}}]}, None),
        ({"tools": [{"type": "function", "function": {"name": "a", "parameters": 5}}]}, "tools[0].function.parameters"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "description": 5}}]},
            "tools[0].function.description",
        ),
        ({"tools": [TOOL] * 129}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, "tool_choice"),
        ({"tool_choice": "maybe", "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "see"}}, "tools": [TOOL]}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools"}, "tools": [TOOL]}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
    ],
)
def test_bad_tools(fields: dict[str, Any], param: str | None) -> None:
    if param is None:
        assert asked(CHAT, chat(**fields))  # an empty list of parameters, as some clients send
    else:
        assert refused(CHAT, chat(**fields))["param"] == param


# Constraints

SCHEMA = {"type": "object", "properties": {"b": {}, "a": {"enum": ["é"]}}}
SCHEMA_TEXT = '{"type":"object","properties":{"b":{},"a":{"enum":["é"]}}}'


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, GrammarSpec("json_object")),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            GrammarSpec("json_schema", SCHEMA_TEXT),
        ),
        ({"guided_json": SCHEMA}, GrammarSpec("json_schema", SCHEMA_TEXT)),
        ({"guided_json": SCHEMA_TEXT}, GrammarSpec("json_schema", SCHEMA_TEXT)),
        (
            {"guided_json": {"maximum": 10**30}},
            GrammarSpec("json_schema", '{"maximum":1000000000000000000000000000000}'),
        ),
        ({"guided_regex": "a+"}, GrammarSpec("regex", "a+")),
        ({"guided_choice": ["a", "é"]}, GrammarSpec("choice", '["a","é"]')),
        ({"guided_grammar": "start: /a/"}, GrammarSpec("lark", "start: /a/")),
        ({"structured_outputs": {"json": SCHEMA}}, GrammarSpec("json_schema", SCHEMA_TEXT)),
        ({"structured_outputs": {"json_object": True}}, GrammarSpec("json_object")),
        ({"structured_outputs": {"choice": ["a"], "regex": None}}, GrammarSpec("choice", '["a"]')),
    ],
)
def test_constraints(fields: dict[str, Any], spec: GrammarSpec | None) -> None:
    assert asked(COMPLETIONS, completion(**fields)).params.grammar == spec


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_json": "[]"}, "guided_json"),
        ({"guided_json": "[" * 5000}, "guided_json"),
        ({"guided_json": '{"a":"\\ud800"}'}, "guided_json"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice[0]"),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs.regex"),
    ],
)
def test_bad_constraints(fields: dict[str, Any], param: str) -> None:
    assert refused(COMPLETIONS, completion(**fields))["param"] == param
