"""Tokenizers of Gemma's manner, from a GGUF's vocabulary: pieces by merit, runs of spaces, bytes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from decodeloop.engine.text.tokenizer import BpeTokenizer
from decodeloop.engine.text.tokenizer_gguf import tokenizer_from_gguf
from reference_bpe import sentencepiece_ids

PIECES = [
    "▁",
    *"abcdehlnorstuwTHW.,",
    "▁t",
    "he",
    "▁the",
    "▁▁▁▁",
    "th",
    "ing",
    "in",
    "an",
    "▁an",
    "and",
    "▁and",
    "aa",
    "aaaa",
]


def sentencepiece_vocabulary(**changed: Any) -> dict[str, Any]:
    """A small vocabulary in Gemma's manner: controls, runs of newlines and spaces, bytes, then pieces by merit."""
    runs = ["\n", "\n\n", "\n\n\n", "▁▁", "▁▁▁", "<table>"]
    controls = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    tokens = [*controls, *runs, *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES, *"ginŽží日"]
    tokens = list(dict.fromkeys(tokens))
    kinds = [3] * len(controls) + [4] * len(runs) + [6] * 256
    kinds += [1] * (len(tokens) - len(kinds))
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        # a converter writes user-defined runs of spaces as spaces
        "tokenizer.ggml.tokens": [
            t.replace("▁", " ") if kind == 4 else t for t, kind in zip(tokens, kinds, strict=True)
        ],
        "tokenizer.ggml.scores": [-1000.0 if kind != 1 else -float(id_) for id_, kind in enumerate(kinds)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 3,
        "tokenizer.ggml.add_space_prefix": False,
        **changed,
    }


def ours_and_definition(metadata: dict[str, Any]) -> tuple[BpeTokenizer, Any]:
    tokens = [token.replace(" ", "▁") for token in metadata["tokenizer.ggml.tokens"]]
    kinds, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    ids = {token: id_ for id_, token in enumerate(tokens)}
    merit = {t: s if kind == 1 else 0.0 for t, s, kind in zip(tokens, scores, kinds, strict=True) if kind in (1, 4)}
    whole = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 4]
    ours = tokenizer_from_gguf(metadata, vocab_size=len(tokens))
    return ours, lambda text: sentencepiece_ids(text, ids, merit, whole)


SENTENCES, definition = ours_and_definition(sentencepiece_vocabulary())


@given(st.text(st.sampled_from("the and an  \n<table>bin.日x\x00🎉Ž"), max_size=30))
def test_sentencepiece_follows_its_definition(text: str) -> None:
    assume("   " not in text)  # among cuts of one piece the library and SentencePiece choose differently
    assume("aaa" not in text)
    assert SENTENCES.encode(text) == definition(text)


@given(st.text())
def test_sentencepiece_gives_any_text_back(text: str) -> None:
    kept = text.replace("▁", " ")  # the one character that the vocabulary cannot tell from a space
    for special in (False, True):
        ids = SENTENCES.encode(text, special=special)
        assert b"".join(map(SENTENCES.token_bytes, ids)) == kept.encode()
        assert SENTENCES.decode(ids, skip_special=False) == kept


def test_sentencepiece_markers_bytes_and_ends() -> None:
    assert SENTENCES.encode("<end_of_turn>", special=True) == [5]
    assert not {0, 1, 2, 3, 4, 5} & set(SENTENCES.encode("<end_of_turn><eos>"))
    assert SENTENCES.eos_ids == {1, 5}
    assert (SENTENCES.bos_id, SENTENCES.add_bos) == (2, True)
    assert SENTENCES.token_bytes(9) == b"  "
    assert SENTENCES.token_bytes(12 + 0x9F) == b"\x9f"
    assert SENTENCES.token_text(12 + 0x9F) == "\ufffd"


def test_sentencepiece_may_start_with_a_space() -> None:
    ours, _ = ours_and_definition(sentencepiece_vocabulary(**{"tokenizer.ggml.add_space_prefix": True}))
    assert ours.encode("the") == SENTENCES.encode(" the")


def test_pieces_out_of_order_are_merged_by_score() -> None:
    metadata = sentencepiece_vocabulary()
    metadata["tokenizer.ggml.scores"] = [
        score if score == -1000.0 else -900 - score for score in metadata["tokenizer.ggml.scores"]
    ]
    ours, defined = ours_and_definition(metadata)
    assert ours.encode(" theand") == defined(" theand")
    assert ours.encode(" the and then") == defined(" the and then") != SENTENCES.encode(" the and then")


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tokenizer.ggml.scores": []}, "with 0 scores"),
        ({"tokenizer.ggml.token_type": []}, "and 0 types"),
    ],
)
def test_a_broken_sentencepiece_vocabulary_is_refused(changed: dict[str, Any], says: str) -> None:
    metadata = sentencepiece_vocabulary(**changed)
    with pytest.raises(ValueError, match=says):
        tokenizer_from_gguf(metadata, vocab_size=len(metadata["tokenizer.ggml.tokens"]))


def test_a_sentencepiece_vocabulary_needs_all_bytes() -> None:
    metadata = sentencepiece_vocabulary()
    metadata["tokenizer.ggml.tokens"][12] = "nothing"
    with pytest.raises(ValueError, match="without all of the byte tokens"):
        tokenizer_from_gguf(metadata, vocab_size=len(metadata["tokenizer.ggml.tokens"]))
