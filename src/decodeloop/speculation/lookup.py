"""What free drafters look texts up in. Written in Python beside its drafter, and compiled where the engine has that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Ngrams(Protocol):
    """Where each n-gram of one growing text ended last.

    match_end: index of the last token of the latest earlier occurrence of the longest known suffix.
    match_len: for how many tokens the text before `match_end` is known to agree with the suffix; 0: no match.
    """

    @property
    def size(self) -> int:
        """Tokens read."""
        ...

    @property
    def match_end(self) -> int: ...

    @property
    def match_len(self) -> int: ...

    def read(self, tokens: Sequence[int]) -> None: ...

    def memory_bytes(self) -> int: ...


class Place(Protocol):
    """Somewhere in an automaton: where the last `length` tokens of something are.

    size: of the automaton when the place was found; a bigger one may know a longer match.
    """

    @property
    def length(self) -> int: ...

    @property
    def size(self) -> int: ...


class Automaton(Protocol):
    """Every context of one text or several, how often it came, and what followed it most. Places are its own kind."""

    @property
    def size(self) -> int:
        """Tokens read."""
        ...

    def begin_text(self) -> None:
        """Nothing matches across texts."""
        ...

    def read(self, tokens: Sequence[int]) -> None: ...

    def nowhere(self) -> Any:
        """The place of no tokens."""
        ...

    def own_end(self, limit: int) -> Any:
        """The text's longest suffix, up to `limit` tokens, that came before."""
        ...

    def advance(self, context: Any, tokens: Sequence[int], limit: int) -> None:
        """Move `context` on over `tokens`: to their longest suffix, up to `limit` tokens, that the texts hold."""
        ...

    def likeliest(self, context: Any, count: int, floor: float) -> tuple[list[int], list[float]]:
        """What came after `context` most often: up to `count` tokens, and the product of shares up to each, which is at
        least `floor`."""
        ...

    def memory_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Lookups:
    """ngrams: from max_n, min_n and the bits of a token. automaton: from the longest context that it counts."""

    ngrams: Callable[[int, int, int], Ngrams]
    automaton: Callable[[int], Automaton]
