from hypothesis import example, given
from hypothesis import strategies as st

from decodeloop.engine.text.detokenizer import Detokenizer
from toy_tokenizer import ToyTokenizer

PIECES = ("Příliš", " žluť", "oučký", "👩‍💻", "🧑".encode()[:3], "🧑".encode()[2:], b"\xff", "…".encode()[:2])
TOKENIZER = ToyTokenizer(PIECES)
CZECH = "Příliš žluťoučký kůň úpěl ďábelské ódy 👩‍💻🧑🏽‍🚀 čtvrt."


def pieces(tokens):
    detokenizer = Detokenizer(TOKENIZER)
    return [*(detokenizer.push(t) for t in tokens), detokenizer.finish()]


@given(st.lists(st.integers(0, TOKENIZER.vocab_size - 1), max_size=40))
@example([0xE2, 0x28, 0xA1])
@example([0xF0, 0x9F])
def test_the_pieces_of_any_ids_are_the_decode_of_all(tokens):
    assert "".join(pieces(tokens)) == TOKENIZER.decode(tokens)


@given(st.text(max_size=30), st.data())
def test_a_character_comes_out_whole_with_its_last_byte(text, data):
    """Whole text, cut into bytes: no piece ever holds a replacement character that the text lacks."""
    out = pieces(list(text.encode()))
    assert "".join(out) == text
    assert all("�" not in piece or "�" in text for piece in out)
    assert out[-1] == ""


def test_czech_and_emoji_byte_by_byte_and_piece_by_piece():
    for tokens in (list(CZECH.encode()), TOKENIZER.encode(CZECH)):
        out = pieces(tokens)
        assert "".join(out) == CZECH
        assert not any("�" in piece for piece in out)


def test_incomplete_bytes_are_held_and_flushed_last():
    detokenizer = Detokenizer(TOKENIZER)
    assert [detokenizer.push(b) for b in "a🧑".encode()[:4]] == ["a", "", "", ""]
    assert detokenizer.pending
    assert detokenizer.finish() == "�"
    assert not detokenizer.pending


def test_control_tokens_add_nothing_unless_they_are_shown():
    marker = TOKENIZER.control_id("<|python_tag|>")
    end = TOKENIZER.control_id("<|end|>")
    assert pieces([97, marker, 98, end]) == ["a", "", "b", "", ""]
    shown = Detokenizer(TOKENIZER, shown=frozenset({marker}))
    assert [shown.push(t) for t in (97, marker, end)] == ["a", "<|python_tag|>", ""]
