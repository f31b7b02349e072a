import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cuts import Answer, cut_at, read, read_every_cut
from decodeloop.engine.text.reasoning import ReasoningParser, Thinking, thinking_after


@pytest.mark.parametrize(
    ("thinking", "text", "content", "reasoning"),
    [
        (Thinking.FREE, "<think>\nPřemýšlím 👩‍💻.\n</think>\n\nHotovo.\n", "Hotovo.\n", "Přemýšlím 👩‍💻."),
        (Thinking.FREE, "\n<think>a</think>b", "b", "a"),
        (Thinking.FREE, "<think></think>", "", ""),
        (Thinking.FREE, "<think>\n\n</think>\n\nb", "b", ""),
        (Thinking.FREE, "<think>a  b\n\nc</think>d", "d", "a  b\n\nc"),
        (Thinking.FREE, "<think>nikdy\n", "", "nikdy\n"),
        (Thinking.FREE, "<think>a</thin", "", "a</thin"),
        (Thinking.FREE, "<think>a<think>b</think>c</think>d", "c</think>d", "a<think>b"),
        (Thinking.FREE, "  rovnou <think>x</think>", "  rovnou <think>x</think>", ""),
        (Thinking.FREE, "\n <thin", "\n <thin", ""),
        (Thinking.FREE, "\n <thing>", "\n <thing>", ""),
        (Thinking.FREE, "", "", ""),
        (Thinking.OPENED, "tak</think> ano", "ano", "tak"),
        (Thinking.OPENED, "\ntak", "", "tak"),
        (Thinking.OPENED, "</think>ano", "ano", ""),
        (Thinking.CLOSED, "\nano </think>", "\nano </think>", ""),
    ],
)
def test_reasoning_is_separated(thinking, text, content, reasoning):
    assert read_every_cut(lambda: ReasoningParser(thinking), text) == Answer(content, reasoning)


PARTS = st.sampled_from(["<think>", "</think>", "<thi", "</", "nk>", "\n", "  ", "ž", "ab", "👩‍💻"])


@settings(max_examples=200)
@given(st.sampled_from(Thinking), st.lists(PARTS, max_size=9).map("".join), st.lists(st.integers(0, 60), max_size=8))
def test_any_cut_reads_the_same(thinking, text, places):
    assert read(ReasoningParser(thinking), cut_at(text, places)) == read(ReasoningParser(thinking), [text])


def test_only_a_possible_marker_is_held_back():
    parser = ReasoningParser(Thinking.OPENED)
    assert [parser.push(piece).reasoning for piece in ("a <", "b", " </thin", "g", "</think>")] == [
        "a",
        " <b",
        "",
        " </thing",
        "",
    ]
    assert parser.push("c ").content == "c "


@pytest.mark.parametrize(
    ("prompt", "thinking"),
    [
        ("<|im_start|>assistant\n", Thinking.FREE),
        ("<|im_start|>assistant\n<think>\n", Thinking.OPENED),
        ("<|im_start|>assistant\n<think>\n\n</think>\n\n", Thinking.CLOSED),
        ("<think>a</think>b<|im_start|>assistant\n", Thinking.FREE),
    ],
)
def test_how_a_prompt_leaves_reasoning(prompt, thinking):
    assert thinking_after(prompt) is thinking
