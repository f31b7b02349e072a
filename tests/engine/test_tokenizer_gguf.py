"""Tokenizers built from a GGUF's vocabulary: the same ids as the model's own tokenizer, and exact bytes."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from decodeloop.engine.text.tokenizer import BpeTokenizer
from decodeloop.engine.text.tokenizer_gguf import tokenizer_from_gguf
from reference_bpe import LETTERS, byte_level_ids
from strings import tokenizer_strings

MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CORPUS = tokenizer_strings([""], count=400, seed=1) * 2
STRINGS = tokenizer_strings(MARKERS)
QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3_WORDS = QWEN_WORDS.replace(r"\p{N}|", r"\p{N}{1,3}|")


def published(pre: str) -> Tokenizer:
    """A trained tokenizer with the parts that the family's published tokenizer.json has."""
    whole_words = pre == "llama-bpe"
    tokenizer = Tokenizer(models.BPE(ignore_merges=whole_words))
    tokenizer.normalizer = normalizers.NFC() if pre == "qwen2" else None
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pre in ("smollm", "gpt-2"))
    before: dict[str, list[Any]] = {
        "gpt-2": [],
        "smollm": [pre_tokenizers.Digits(individual_digits=True)],
        "qwen2": [pre_tokenizers.Split(Regex(QWEN_WORDS), "isolated")],
        "llama-bpe": [pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated")],
    }
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*before[pre], to_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[AddedToken(marker, special=True, normalized=False) for marker in MARKERS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    return tokenizer


def metadata_of(tokenizer: Tokenizer, pre: str) -> dict[str, Any]:
    """What a converter writes for `tokenizer`."""
    size = tokenizer.get_vocab_size()
    added = tokenizer.get_added_tokens_decoder()
    kinds = [1 if id_ not in added else 3 if added[id_].special else 4 for id_ in range(size)]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [tokenizer.id_to_token(id_) for id_ in range(size)],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in json.loads(tokenizer.to_str())["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


@pytest.fixture(scope="module", params=["smollm", "gpt-2", "qwen2", "llama-bpe"])
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, BpeTokenizer]:
    theirs = published(request.param)
    size = theirs.get_vocab_size()
    return theirs, tokenizer_from_gguf(metadata_of(theirs, request.param), vocab_size=size)


def test_the_ids_are_those_of_the_published_tokenizer(pair: tuple[Tokenizer, BpeTokenizer]) -> None:
    theirs, ours = pair
    for text in STRINGS:
        assert ours.encode(text, special=True) == theirs.encode(text, add_special_tokens=False).ids, repr(text)
    theirs.encode_special_tokens = True
    for text in STRINGS:
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False).ids, repr(text)
    theirs.encode_special_tokens = False


def test_markers_are_one_id_or_plain_text_as_asked(pair: tuple[Tokenizer, BpeTokenizer]) -> None:
    _, ours = pair
    assert ours.encode("a<|im_end|>b", special=True).count(2) == 1
    assert 2 not in ours.encode("a<|im_end|>b")
    think = ours.encode("<think>")
    assert len(think) == 1
    assert not ours.is_special(think[0])
    assert ours.token_bytes(think[0]) == b"<think>"


def test_tokens_give_the_text_back_to_the_byte(pair: tuple[Tokenizer, BpeTokenizer]) -> None:
    theirs, ours = pair
    for text in STRINGS:
        kept = theirs.normalizer.normalize_str(text) if theirs.normalizer else text
        for special in (False, True):
            ids = ours.encode(text, special=special)
            assert b"".join(map(ours.token_bytes, ids)) == kept.encode()
            assert ours.decode(ids, skip_special=False) == kept


@pytest.mark.parametrize("pre", ["smollm", "gpt-2"])
def test_ids_follow_the_definition_of_byte_pair_encoding(pre: str) -> None:
    metadata = metadata_of(published(pre), pre)
    ours = tokenizer_from_gguf(metadata, vocab_size=len(metadata["tokenizer.ggml.tokens"]))
    ids = {token: id_ for id_, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    ranks = {tuple(merge.split(" ")): rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    for text in tokenizer_strings(MARKERS, seed=3):
        if "<think>" not in text:
            assert ours.encode(text) == byte_level_ids(text, ids, ranks, digits=pre == "smollm"), repr(text)


def byte_vocabulary(**changed: Any) -> dict[str, Any]:
    tokens = [*MARKERS, *LETTERS.values(), "ab", "abc"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3, 3, 3] + [1] * (len(tokens) - 3),
        "tokenizer.ggml.merges": ["a b", "ab c"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        **changed,
    }


BYTES = tokenizer_from_gguf(byte_vocabulary(), vocab_size=270)


@given(st.text())
def test_any_text_comes_back(text: str) -> None:
    for special in (False, True):
        assert b"".join(map(BYTES.token_bytes, BYTES.encode(text, special=special))) == text.encode()


@given(st.lists(st.integers(0, 269)))
def test_decoding_is_joining_bytes(tokens: list[int]) -> None:
    shown = [token for token in tokens if not BYTES.is_special(token)]
    assert BYTES.decode(tokens) == b"".join(map(BYTES.token_bytes, shown)).decode(errors="replace")


def test_ids_beyond_the_vocabulary_add_nothing_and_are_special() -> None:
    last = len(byte_vocabulary()["tokenizer.ggml.tokens"])
    assert BYTES.vocab_size == 270
    for id_ in range(last, 270):
        assert BYTES.token_bytes(id_) == b""
        assert BYTES.is_special(id_)
    with pytest.raises(IndexError):
        BYTES.token_bytes(270)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="half a surrogate pair"):
        BYTES.encode("a\ud83d")


def test_a_letter_without_a_token_is_dropped_as_the_published_tokenizer_does() -> None:
    """SmolLM2's vocabulary lacks 21 of the 256 byte letters."""
    metadata = byte_vocabulary()
    at = metadata["tokenizer.ggml.tokens"].index("z")
    metadata["tokenizer.ggml.tokens"][at] = "zz"
    ours = tokenizer_from_gguf(metadata, vocab_size=270)
    assert ours.decode(ours.encode("razor")) == "raor"


@pytest.mark.parametrize(
    ("changed", "ends"),
    [
        ({}, {0, 2}),
        ({"tokenizer.ggml.eot_token_id": 40}, {0, 2, 40}),
        ({"tokenizer.ggml.token_type": [1] * 261}, {2}),  # a marker that is no control token ends nothing
    ],
)
def test_what_ends_a_turn(changed: dict[str, Any], ends: set[int]) -> None:
    assert tokenizer_from_gguf(byte_vocabulary(**changed), vocab_size=270).eos_ids == ends


@pytest.mark.parametrize(
    ("changed", "adds"),
    [
        ({}, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
        ({"tokenizer.ggml.add_bos_token": True}, True),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": None}, False),
    ],
)
def test_whether_bos_starts_a_text(changed: dict[str, Any], adds: bool) -> None:
    assert tokenizer_from_gguf(byte_vocabulary(**changed), vocab_size=270).add_bos is adds


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"tokenizer.ggml.model": "t5"}, "no tokenizer model 't5'; known are gpt2, llama"),
        ({"tokenizer.ggml.pre": "tekken"}, "no pre-tokenizer 'tekken'; known are default, gpt-2"),
        ({"tokenizer.ggml.merges": ["a b", "x yz"]}, "the merge 'x' 'yz' needs 'yz'"),
        ({"tokenizer.ggml.merges": ["ab"]}, "'ab' is not a merge"),
        ({"tokenizer.ggml.tokens": ["a"] * 10}, "token 'a' is in the vocabulary twice"),
        ({"tokenizer.ggml.tokens": []}, "a vocabulary of 0 tokens"),
        ({"tokenizer.ggml.tokens": ["a"] * 300}, "a vocabulary of 300 tokens for an embedding of 270 rows"),
        ({"tokenizer.ggml.eos_token_id": 999}, "end tokens \\[999\\]"),
    ],
)
def test_a_broken_vocabulary_is_refused_in_words(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        tokenizer_from_gguf(byte_vocabulary(**changed), vocab_size=270)


def test_threads_share_a_tokenizer() -> None:
    """Encoding markers and plain text at once must not mix the two up."""
    text = "<|im_start|>user abc<|im_end|>" * 20
    expected = [BYTES.encode(text, special=special) for special in (False, True)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: BYTES.encode(text, special=bool(index % 2)), range(400)))
    assert found == expected * 200
