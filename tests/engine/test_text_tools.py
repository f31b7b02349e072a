import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuts import Answer, cut_at, read, read_every_cut
from decodeloop.engine.text.calls import Tools
from decodeloop.engine.text.tool_forms import GEMMA, HERMES, LLAMA3, TAGGED_LIST, tool_form_for
from decodeloop.engine.text.tools import ToolParser


def function(name, *parameters):
    properties = {parameter: {} for parameter in parameters}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


TOOLS = Tools([function("get_weather", "city", "days"), function("get"), function("čti-soubor", "cesta")])
FORMS = {form.name: form for form in (HERMES, TAGGED_LIST, LLAMA3, GEMMA)}


def parser(form, *, constrained=False):
    return lambda: ToolParser(FORMS[form], TOOLS, call_id="id{}".format, constrained=constrained)


def answer(content, *calls):
    return Answer(content, "", tuple((f"id{i}", name, arguments) for i, (name, arguments) in enumerate(calls)))


W = '{"name": "get_weather", "arguments": {"city": "Brno 👩‍💻", "days": [1, {"a": "}"}]}}'
W_ARGUMENTS = '{"city": "Brno 👩‍💻", "days": [1, {"a": "}"}]}'
P = W.replace('"arguments"', '"parameters"')
G = '{"name": "get", "arguments": {}}'

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


PIECES = [
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "</",
    "<",
    "\n",
    " ",
    "Žluť",
    "👩‍💻",
    G,
    W,
    P,
    f"[{G}, {W}]",
    "{",
    "}",
]
PIECES += [
    '"',
    '{"name": "get"',
    ', "arguments": {',
    '"x": 1',
    ": ",
    "```json\n",
    "```",
    "```tool_code",
    "get(",
    "x='a')",
]
PIECES += ["[", "]", "<|python_tag|>", ";", "get()", "[get(1)]"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(FORMS)), TEXTS, st.lists(st.integers(0, 300), max_size=12))
def test_any_cut_of_any_text_reads_the_same(form, text, places):
    assert read(parser(form)(), cut_at(text, places)) == read(parser(form)(), [text])


def reference(text):
    """Tagged calls by definition, on the whole text."""
    content, calls, at = "", [], 0
    while at < len(text):
        block = re.compile(r"<tool_call>\s*", re.ASCII).match(text, at)
        found = block and called(text, block.end())
        if found:
            made, end = found
            calls += made
            content = content.rstrip(" \t\r\n")
            at = re.compile(r"[ \t\r\n]*").match(text, end).end()
        else:
            content += text[at]
            at += 1
    return answer(content, *calls)


def called(text, at):
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError):
        return None
    items = value if isinstance(value, list) else [value]
    if not items or not all(isinstance(i, dict) and i.get("name") in ("get", "get_weather") for i in items):
        return None
    close = re.compile(r"\s*(</tool_call>|" + "|".join("</tool_call>"[:n] + r"\Z" for n in range(11, -1, -1)) + ")")
    closed = close.match(text, end)
    if closed is None:
        return None
    return [(item["name"], arguments_of(text[at:end], i)) for i, item in enumerate(items)], closed.end()


def arguments_of(block, place):
    pieces = re.findall(r'"(?:arguments|parameters)": (\{(?:"city".*?\]|)\})\}', block)
    return pieces[place]


BITS = ["<tool_call>", "</tool_call>", "</tool_call", "<", "\n", " a", "ž", G, W, P, f"[{G}, {W}]", "[", "{}"]
SIMPLE = st.lists(st.sampled_from(BITS), max_size=8).map("".join)


@settings(max_examples=300, deadline=None)
@given(SIMPLE)
@example(f"<tool_call>{G}<tool_call>{G}</tool_call>")
def test_tagged_calls_are_those_of_the_definition(text):
    assert read(parser("hermes")(), [text]) == reference(text)


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
