import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decodeloop.engine.text.output import Output
from decodeloop.types import SamplingParams
from toy_tokenizer import ToyTokenizer

TOKENIZER = ToyTokenizer(("stop", " st", "op ", "příliš", "STOP\n\nEND", "🧑🏽‍🚀", "🧑".encode()[:2]))
CZECH = "Příliš žluťoučký kůň STOP úpěl 👩‍💻 ďábelské ódy."


def run(tokens, **params):
    """Text, delivered tokens and stop string, as the commit routine collects them."""
    output, text, delivered = Output(TOKENIZER, SamplingParams(**params)), "", 0
    for token in tokens:
        delta = output.push(token)
        text, delivered = text + delta.text, delivered + delta.tokens
        assert "�" not in delta.text
        if delta.stopped is not None:
            return text, tokens[:delivered], delta.stopped
    delta = output.finish()
    return text + delta.text, tokens[: delivered + delta.tokens], None


@pytest.mark.parametrize("encode", [lambda s: list(s.encode()), TOKENIZER.encode])
@pytest.mark.parametrize("text", ["{}", "{}tail", "head {}", "head {} tail", "🧑🏽‍🚀{}🧑🏽‍🚀"])
def test_text_and_ids_end_together_at_a_stop_string(encode, text):
    tokens = encode(text.format("STOP"))
    got, kept, stopped = run(tokens, stop=("STOP",))
    assert (got, stopped) == (text.split("{}")[0], "STOP")
    assert TOKENIZER.decode(kept) == got


def test_a_token_that_holds_text_and_the_stop_string_is_delivered():
    tokens = TOKENIZER.encode("a STOP\n\nEND b")
    got, kept, stopped = run(tokens, stop=("\n\n",))
    assert (got, stopped) == ("a STOP", "\n\n")
    assert TOKENIZER.decode(kept) == "a STOP\n\nEND"


def test_without_stop_strings_every_token_is_delivered_with_its_character():
    tokens, output, delivered = list(CZECH.encode()), Output(TOKENIZER, SamplingParams()), 0
    text = ""
    for count, token in enumerate(tokens, 1):
        delta = output.push(token)
        text, delivered = text + delta.text, delivered + delta.tokens
        assert TOKENIZER.decode(tokens[:delivered]) == text
        assert delivered == count or delta.text == ""
    assert text == CZECH


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=30), st.sampled_from(["op", "st", "p s", "�"]))
@example(TOKENIZER.encode("a sto"), "stop")
@example([0x61, 0xF0], "op")
def test_delivered_tokens_are_those_that_begin_before_the_end(tokens, stop):
    output, text, delivered, stopped = Output(TOKENIZER, SamplingParams(stop=(stop,))), "", 0, None
    for token in tokens:
        delta = output.push(token)
        text, delivered, stopped = text + delta.text, delivered + delta.tokens, delta.stopped
        if stopped is not None:
            break
        assert text.startswith(TOKENIZER.decode(tokens[:delivered]).rstrip("�")) or "�" in text
    last = output.finish()
    if stopped is None:
        assert text + last.text == TOKENIZER.decode(tokens)
        assert delivered + last.tokens == len(tokens)
    else:
        assert (last.text, last.tokens) == ("", 0)
        whole = TOKENIZER.decode(tokens)
        assert whole.startswith(text + stop)


@pytest.mark.parametrize("min_tokens", range(9))
def test_min_tokens_counts_tokens(min_tokens):
    tokens = list(b"abSTOPcdSTOPef")
    text, _, stopped = run(tokens, stop=("STOP",), min_tokens=min_tokens)
    assert stopped == "STOP"
    assert text == ("ab" if min_tokens <= 6 else "abSTOPcd")


def test_the_end_flushes_half_a_stop_string_and_half_a_character():
    output = Output(TOKENIZER, SamplingParams(stop=("STOP",)))
    deltas = [output.push(t) for t in [*b"aST", 0xF0, 0x9F]]
    assert [d.text for d in deltas] == ["a", "", "", "", ""]
    assert (output.finish().text, sum(d.tokens for d in deltas)) == ("ST�", 1)
