"""The classifier of request classes: what it may see, how much, and how well it does on prompts it never saw."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.cli.classes import open_classifier
from decodeloop.policy.classifier import CLASSES, HEAD, SURE, TAIL, Classifier, features, text_of
from decodeloop.types import ChatPrompt, RequestClass

ROOT = Path(__file__).parents[2]
DATA = ROOT / "benchmarks" / "data" / "request_classes"
CLASSIFY = open_classifier()


def rows(name):
    return [json.loads(line) for line in (DATA / name).read_text(encoding="utf-8").splitlines()]


def chat(*messages, **fields):
    return ChatPrompt(tuple({"role": role, "content": content} for role, content in messages), **fields)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Write a SQL query that lists the customers without orders.", RequestClass.SQL),
        ("Translate into German: the shop is closed on Sundays", RequestClass.TRANSLATION),
        ("Write a Python function that reverses a linked list", RequestClass.CODE_SYNTHESIS),
        ("Write a poem about the sea at night", RequestClass.CREATIVE_WRITING),
        ("Return only a JSON object with the keys name and age", RequestClass.STRUCTURED_JSON),
        ("I want a refund, my order never arrived", RequestClass.SUPPORT_CHAT),
        ("What is the capital of Mongolia?", RequestClass.GENERAL_CHAT),
    ],
)
def test_clear_cases(prompt, expected):
    assert CLASSIFY(prompt) is expected
    assert CLASSIFY(chat(("user", prompt))) is expected


def test_offered_tools_say_it_themselves():
    tools = ({"type": "function", "function": {"name": "f"}},)
    assert CLASSIFY(chat(("user", "hello"), tools=tools)) is RequestClass.TOOL_CALL
    assert CLASSIFY(chat(("user", "What is gravity?"), tools=tools, tool_choice="none")) is RequestClass.GENERAL_CHAT


def test_where_it_is_not_sure_it_is_general_chat():
    for nothing in ("", "zzz qqq", (1, 2, 3), ChatPrompt(()), "…"):
        assert CLASSIFY(nothing) is RequestClass.GENERAL_CHAT
    unsure = Classifier(["write"], CLASSIFY._weights[:1] * 0, 1.0, CLASSIFY._bias * 0)
    assert unsure.guess("write") is None


def test_the_last_user_message_counts_and_the_systems_beginning():
    prompt = chat(("system", "You are " + "kind " * 200), ("user", "first"), ("assistant", "x"), ("user", "second"))
    assert "second" in text_of(prompt)
    assert "first" not in text_of(prompt)
    assert len(text_of(prompt)) < HEAD
    parts = ({"type": "text", "text": "one"}, {"type": "image_url", "image_url": {}}, {"type": "text", "text": "two"})
    assert text_of(chat(("user", parts))) == "one\ntwo"


@given(st.text(max_size=50), st.text(max_size=50), st.integers(1, 1000))
def test_of_a_long_prompt_only_the_ends_are_read(begin, end, more):
    head, tail = begin.ljust(HEAD, "a"), end.rjust(TAIL, "b")
    one, other = (CLASSIFY.probabilities(head + fill * more + tail) for fill in ("x ", "SELECT "))
    assert (one == other).all()


@given(st.text(st.characters(max_codepoint=127), max_size=300))
def test_ascii_is_cut_as_all_text_is(text):
    """With a character of another script, at an end that nothing joins on, the general way is taken."""
    assert features(text + " ") | {"é"} == {name for name in features(text + " é") if " é" not in name} | {"é"}


def test_a_huge_prompt_has_no_more_features_than_a_long_one():
    assert len(features("word apple " * 1_000_000)) <= 3 * (HEAD + TAIL)


@given(st.one_of(st.text(), st.text(alphabet=st.characters(categories=["Cs", "Lo", "So"]))))
def test_any_text_has_probabilities_that_sum_to_one(text):
    likely = CLASSIFY.probabilities(text)
    assert likely.shape == (len(CLASSES),)
    assert likely.sum() == pytest.approx(1.0)
    guess = CLASSIFY.guess(text)
    assert (guess is None) == (likely.max() < SURE)
    assert guess in (None, CLASSES[likely.argmax()])


def test_weights_survive_their_file_and_others_are_refused():
    again = Classifier.from_bytes(CLASSIFY.to_bytes())
    assert (again.probabilities("translate this") == CLASSIFY.probabilities("translate this")).all()
    for broken in (b"", b"PK\x03\x04 nothing", CLASSIFY.to_bytes()[:-200]):
        with pytest.raises(ValueError, match="weights"):
            Classifier.from_bytes(broken)


def test_no_prompt_is_in_both_sets():
    train, held = ({row["prompt"].lower().strip(" .?!") for row in rows(n)} for n in ("train.jsonl", "held_out.jsonl"))
    assert not train & held


def test_the_published_confusion_matrix_is_that_of_the_shipped_weights():
    text = (ROOT / "docs" / "classes.md").read_text()
    table = re.findall(r"^\| `(\w+)` \|((?: *[\d.]+ *\|)+)$", text, re.M)
    published = {name: [int(cell.replace(".", "0")) for cell in cells[:-1].split("|")] for name, cells in table}
    found = {str(name): [0] * len(CLASSES) for name in CLASSES}
    for row in rows("held_out.jsonl"):
        found[row["class"]][CLASSES.index(CLASSIFY(row["prompt"]))] += 1
    assert published == found
    right = sum(found[str(name)][i] for i, name in enumerate(CLASSES))
    assert f"{right} of {sum(map(sum, found.values()))}" in text
    assert f"elow {SURE}" in text
