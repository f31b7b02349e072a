"""Calls of tools in what models write, form by form."""

import pytest

from cuts import read_every_cut
from decodeloop.engine.text.tool_forms import tool_form_for
from tool_texts import FORMS, W_ARGUMENTS, G, P, W, answer, parser

TAGGED = [
    # calls, and the white space that belongs to them
    (f"<tool_call>\n{W}\n</tool_call>", answer("", ("get_weather", W_ARGUMENTS))),
    (
        f"Podívám se.\n<tool_call>{G}</tool_call>\n<tool_call> {W} </tool_call>\n",
        answer("Podívám se.", ("get", "{}"), ("get_weather", W_ARGUMENTS)),
    ),
    (f"a <tool_call>{G}</tool_call> b \n", answer("ab \n", ("get", "{}"))),
    (f"<tool_call>[{G}, {W}]</tool_call>", answer("", ("get", "{}"), ("get_weather", W_ARGUMENTS))),
    # the end comes before the closing marker does
    (f"<tool_call>\n{G}", answer("", ("get", "{}"))),
    (f"<tool_call>\n{G}\n</tool_", answer("", ("get", "{}"))),
    # other ways to write the same call
    ('<tool_call>{"name": "get"}</tool_call>', answer("", ("get", "{}"))),
    ('<tool_call>{"name": "get", "arguments": null}</tool_call>', answer("", ("get", "{}"))),
    ('<tool_call>{"arguments": {"x": 1}, "name": "get"}</tool_call>', answer("", ("get", '{"x": 1}'))),
    ('<tool_call>{"name": "get", "arguments": "{\\"x\\": 1}"}</tool_call>', answer("", ("get", '{"x": 1}'))),
    (
        '<tool_call>{"type": "function", "id": 7, "name": "get", "parameters": { "x" : 1.5e3 } }</tool_call>',
        answer("", ("get", '{ "x" : 1.5e3 }')),
    ),
    (
        '<tool_call>{"name": "\\u010dti-soubor", "arguments": {"cesta": "</tool_call>"}}</tool_call>',
        answer("", ("čti-soubor", '{"cesta": "</tool_call>"}')),
    ),
    # a marker inside a false start
    (f"<tool_call><tool_call>{G}</tool_call>", answer("<tool_call>", ("get", "{}"))),
    (f"<tool_<tool_call>{G}</tool_call>", answer("<tool_", ("get", "{}"))),
    (f'<tool_call>{{"x": <tool_call>{G}</tool_call>', answer('<tool_call>{"x":', ("get", "{}"))),
]
NO_CALLS = [
    "",
    " \n ",
    "Ahoj, <tool> a <tool_call",
    "<tool_call>",
    "<tool_call>\n\n",
    "<tool_call>{}</tool_call>",
    "<tool_call>[]</tool_call>",
    "<tool_call>[[]]</tool_call>",
    "<tool_call>7</tool_call> tail",
    '<tool_call>{"name": "get_weather", "arguments": {"city": }}</tool_call>',
    '<tool_call>{"name": "get", "arguments": {"a": 1}</tool_call>',
    '<tool_call>{"name": "get", "arguments": {}}}</tool_call>',
    '<tool_call>{"name": "get", "arguments": [1]}</tool_call>',
    '<tool_call>{"name": "get", "arguments": "[1]"}</tool_call>',
    '<tool_call>{"name": "get", "arguments": "nic"}</tool_call>',
    '<tool_call>{"name": "get", "name": "get"}</tool_call>',
    '<tool_call>{"name": "get", "arguments": {}, "parameters": {}}</tool_call>',
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": 3}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    '<tool_call>{"title": "x", "name": "get"}</tool_call>',
    f"<tool_call>[{G}</tool_call>",
    f"<tool_call>[{G}, 3]</tool_call>",
    f"<tool_call>{G}</tool_call".replace("</", "< /"),
    f"<tool_call>{G} and more</tool_call>",
    '<tool_call>{"name": "get", "arguments": {"a": "ne\nne"}}</tool_call>\n\nA dál.',
]


@pytest.mark.parametrize("form", ["hermes", "tagged_list"])
@pytest.mark.parametrize(("text", "expected"), TAGGED)
def test_tagged_calls(form, text, expected):
    assert read_every_cut(parser(form), text) == expected


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("text", NO_CALLS)
def test_what_is_no_call_stays_content_to_the_last_character(form, text):
    assert read_every_cut(parser(form), text) == answer(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (P, answer("", ("get_weather", W_ARGUMENTS))),
        (f"\n{P}\n", answer("", ("get_weather", W_ARGUMENTS))),
        (f"<|python_tag|>{P}", answer("", ("get_weather", W_ARGUMENTS))),
        (f"Tedy: <|python_tag|>{P}", answer("Tedy:", ("get_weather", W_ARGUMENTS))),
        (f"{P}; {G}", answer("", ("get_weather", W_ARGUMENTS), ("get", "{}"))),
        (f"{P}\n{G} ;{G}", answer("", ("get_weather", W_ARGUMENTS), ("get", "{}"), ("get", "{}"))),
        (f"{G}; a dál", answer("; a dál", ("get", "{}"))),
        (f"{G};;{G}", answer(f";;{G}", ("get", "{}"))),
        (f"{G} hotovo", answer("hotovo", ("get", "{}"))),
        (f"{G}<|python_tag|>{G}", answer("", ("get", "{}"), ("get", "{}"))),
        ('{"jméno": "Žofie", "name": "get"}', answer('{"jméno": "Žofie", "name": "get"}')),
        ('{"name": "Žofie"}', answer('{"name": "Žofie"}')),
        (f"Odpověď je {G}", answer(f"Odpověď je {G}")),
        (f"{{<|python_tag|>{G}", answer("{", ("get", "{}"))),
        ('<|python_tag|>brave.call(query="x")', answer('<|python_tag|>brave.call(query="x")')),
        (" \n", answer(" \n")),
        (f"{G} ; ", answer("; ", ("get", "{}"))),
    ],
)
def test_llama3_calls(text, expected):
    assert read_every_cut(parser("llama3"), text) == expected


B = '{"city": "Brno", "days": 3}'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"```json\n{P}\n```", answer("", ("get_weather", W_ARGUMENTS))),
        (f"```tool_call\n{P}\n```\n", answer("", ("get_weather", W_ARGUMENTS))),
        ("```tool_code\nget_weather(city='Brno', days=3)\n```", answer("", ("get_weather", B))),
        ("```tool_code\n[get_weather('Brno', 3), get()]\n```", answer("", ("get_weather", B), ("get", "{}"))),
        ("Tak:\n```tool_code\nget()\nget();get()```ok", answer("Tak:ok", *[("get", "{}")] * 3)),
        ("[get_weather(days=3, city='Brno')]", answer("", ("get_weather", '{"days": 3, "city": "Brno"}'))),
        ('[get(), čti-soubor(cesta="a)b\'\\"]")]', answer("", ("get", "{}"), ("čti-soubor", '{"cesta": "a)b\'\\"]"}'))),
        (P, answer("", ("get_weather", W_ARGUMENTS))),
        ("[1, 2, 3]", answer("[1, 2, 3]")),
        ("[get, get_weather]", answer("[get, get_weather]")),
        ("[getter()]", answer("[getter()]")),
        ("[get(x=get())]", answer("[get(x=get())]")),
        ("[get(x=1]", answer("[get(x=1]")),
        ("[get()", answer("[get()")),
        ('```json\n{"počasí": "déšť"}\n```', answer('```json\n{"počasí": "déšť"}\n```')),
        ("```python\nget()\n```", answer("```python\nget()\n```")),
        ("```tool_code\nprint(1)\n```", answer("```tool_code\nprint(1)\n```")),
        ("```tool_code\nget(\n```", answer("```tool_code\nget(\n```")),
        ("[```tool_code\nget()```", answer("[", ("get", "{}"))),
    ],
)
def test_gemma_calls(text, expected):
    assert read_every_cut(parser("gemma"), text) == expected


@pytest.mark.parametrize("form", FORMS)
def test_under_a_grammar_arguments_come_as_they_are_written(form):
    text = FORMS[form].write([("get_weather", W_ARGUMENTS), ("get", "{}")])
    assert read_every_cut(parser(form, constrained=True), text) == answer(
        "", ("get_weather", W_ARGUMENTS), ("get", "{}")
    )
    streamed, seen = parser(form, constrained=True)(), 0
    start = text.index(W_ARGUMENTS)
    for at, char in enumerate(text):
        seen += sum(len(delta.arguments) for delta in streamed.push(char).tool_calls)
        if start <= at < start + len(W_ARGUMENTS):
            assert seen == at - start + 1


@pytest.mark.parametrize("form", FORMS)
def test_a_call_cut_short_under_a_grammar_keeps_what_is_out(form):
    text = FORMS[form].write([("get_weather", W_ARGUMENTS)])
    short = text[: text.index("days")]
    expected = answer("", ("get_weather", W_ARGUMENTS[: W_ARGUMENTS.index("days")]))
    assert read_every_cut(parser(form, constrained=True), short) == expected


@pytest.mark.parametrize("form", FORMS)
def test_what_a_form_writes_it_reads(form):
    calls = [("get", '{"a": "</tool_call> ``` ; "}'), ("čti-soubor", '{"cesta": "x"}')]
    assert read_every_cut(parser(form), FORMS[form].write(calls)) == answer("", *calls)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("Ahoj <tool_call", " <tool_call"),
        ("Ahoj <tool_calx", ""),
        ('<tool_call>{"name": "get", "arg', '<tool_call>{"name": "get", "arg'),
        ('<tool_call>{"name": "nobody"', ""),
        ('<tool_call>{"answer"', ""),
        ("a b", ""),
    ],
)
def test_only_what_may_be_a_call_is_held_back(text, held):
    assert parser("hermes")().push(text).content == text[: len(text) - len(held)]


@pytest.mark.parametrize(
    ("template", "family", "form"),
    [
        ('x <tool_call>\\n{"name"...', "llama", "hermes"),
        ('x <tool_call>[{"name": ...}]', "llama", "tagged_list"),
        ("<|start_header_id|>", "llama", "llama3"),
        ("<start_of_turn>", "gemma3", "gemma"),
        ("<|im_start|>", "llama", "tagged_list"),
        ("<|im_start|>", "qwen3", "hermes"),
        (None, "gemma3", "gemma"),
        (None, "", "hermes"),
    ],
)
def test_the_form_is_what_the_template_teaches(template, family, form):
    assert tool_form_for(template, family).name == form
