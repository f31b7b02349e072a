"""A tokenizer small enough to enumerate: every byte, some merged pieces, some control tokens."""

from __future__ import annotations

from collections.abc import Sequence

CONTROL = ("<|end|>", "<|im_end|>", "<|im_start|>", "<|python_tag|>")


class ToyTokenizer:
    """Ids 0..255 are bytes, then `pieces`, then control tokens; the first two of those end a turn."""

    def __init__(self, pieces: Sequence[str | bytes] = (), control: Sequence[str] = CONTROL) -> None:
        merged = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self._bytes = [bytes([b]) for b in range(256)] + merged
        self._control = list(control)
        self.vocab_size = len(self._bytes) + len(self._control)
        self.eos_ids = frozenset(self.control_id(name) for name in self._control[:2])
        self.bos_id = None
        self.add_bos = False

    def control_id(self, name: str) -> int:
        return len(self._bytes) + self._control.index(name)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        if special and text in self._control:
            return [self.control_id(text)]
        return self.encode_bytes(text.encode())

    def encode_bytes(self, data: bytes) -> list[int]:
        """Greedy, longest piece first."""
        ids, at = [], 0
        by_length = sorted(range(len(self._bytes)), key=lambda i: len(self._bytes[i]), reverse=True)
        while at < len(data):
            token = next(i for i in by_length if data.startswith(self._bytes[i], at))
            ids.append(token)
            at += len(self._bytes[token])
        return ids

    def token_bytes(self, token: int) -> bytes:
        return b"" if self.is_special(token) else self._bytes[token]

    def token_text(self, token: int) -> str:
        if self.is_special(token):
            return self._control[token - len(self._bytes)]
        return self._bytes[token].decode(errors="replace")

    def is_special(self, token: int) -> bool:
        return token >= len(self._bytes)

    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str:
        data = b"".join(
            self.token_text(t).encode() if self.is_special(t) and not skip_special else self.token_bytes(t)
            for t in tokens
        )
        return data.decode(errors="replace")
