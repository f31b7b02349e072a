"""A tokenizer on the `tokenizers` library, exact to the byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import tokenizers

from decodeloop.engine.text.tokenizer_bytes import byte_table

# Control tokens that end a turn or a document in the chat formats of our families; a model's own list comes on top.
TURN_ENDS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
    "<eos>",
    "</s>",
)


class BpeTokenizer:
    """Implements `Tokenizer`.

    backend: the tokenizer that recognises markers; not to be changed. vocab_size: the target's, which may exceed the
    tokenizer's; ids that the tokenizer lacks are special and add nothing. eos_ids: as the model states them; the turn
    ends known by name are added. A byte that the vocabulary lacks (SmolLM2's has 235 of the 256) is dropped on
    encoding, as the model's own tokenizer does.

    Raises:
        ValueError: eos_ids or tokens beyond vocab_size, or a vocabulary whose bytes are not known exactly.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        vocab_size: int,
        eos_ids: Iterable[int],
        bos_id: int | None,
        add_bos: bool,
    ) -> None:
        if (size := backend.get_vocab_size(with_added_tokens=True)) > vocab_size:
            raise ValueError(f"the tokenizer has {size} tokens, the model {vocab_size}")
        backend.no_padding()
        backend.no_truncation()
        self.backend = backend
        self.vocab_size = vocab_size
        self.bos_id = bos_id
        self.add_bos = add_bos and bos_id is not None
        self._plain = _without_markers(backend)
        self._bytes = byte_table(backend, vocab_size)
        added = backend.get_added_tokens_decoder()
        markers = {id_: token.content for id_, token in added.items() if token.special and id_ < vocab_size}
        nothing = {id_ for id_, data in enumerate(self._bytes) if not data}
        self._special = frozenset(markers) | nothing
        self.eos_ids = frozenset(eos_ids) | {id_ for id_, text in markers.items() if text in TURN_ENDS}
        if unknown := sorted(id_ for id_ in self.eos_ids if not 0 <= id_ < vocab_size):
            raise ValueError(f"end tokens {unknown} are not in the vocabulary of {vocab_size}")

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        chosen = self.backend if special else self._plain
        try:  # a batch of one: unlike `encode`, it lets other threads run meanwhile, and keeps no offsets
            ids: list[int] = chosen.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:
            raise ValueError("half a surrogate pair is no text and cannot be encoded") from error
        return ids

    def token_bytes(self, token: int) -> bytes:
        return self._bytes[token]

    def token_text(self, token: int) -> str:
        return self._bytes[token].decode(errors="replace")

    def is_special(self, token: int) -> bool:
        return token in self._special

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        kept = (token for token in tokens if not (skip_special and token in self._special))
        return b"".join(map(self._bytes.__getitem__, kept)).decode(errors="replace")


def _without_markers(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """The same tokenizer, sharing its model, to which control tokens are plain text.

    A second object, because the library's switch is the tokenizer's state and encoding must be safe from any thread.
    """
    plain = tokenizers.Tokenizer(backend.model)
    if backend.normalizer is not None:
        plain.normalizer = backend.normalizer
    if backend.pre_tokenizer is not None:
        plain.pre_tokenizer = backend.pre_tokenizer
    added = [token for _, token in sorted(backend.get_added_tokens_decoder().items())]
    plain.add_tokens([token for token in added if not token.special])
    return plain
