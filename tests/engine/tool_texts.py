"""Tools, calls of them as models write them, and parsers of every form."""

from cuts import Answer
from decodeloop.engine.text.calls import Tools
from decodeloop.engine.text.tool_forms import GEMMA, HERMES, LLAMA3, TAGGED_LIST
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
    "[",
    "]",
    "<|python_tag|>",
    ";",
    "get()",
    "[get(1)]",
]
