"""Any text that may hold calls: read the same however it is cut, and as the definition of tagged calls reads it."""

import json
import re

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cuts import cut_at, read
from tool_texts import FORMS, PIECES, G, P, W, answer, parser

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
