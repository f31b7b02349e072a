"""The first of several fixed strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MarkerScan:
    """text: what certainly comes before any marker; hit: the marker that follows it; rest: what follows the marker."""

    text: str
    hit: str | None = None
    rest: str = ""


class MarkerScanner:
    """Finds the marker that ends first (of several ending together, the longest), whatever the pieces.

    One Knuth-Morris-Pratt automaton a marker: linear in the text, and its state is exactly the length of the text's
    suffix that could still become that marker, which is what has to be held back.
    """

    def __init__(self, markers: Sequence[str]) -> None:
        """markers: none empty."""
        assert all(markers)
        self._markers = tuple(sorted(set(markers), key=len, reverse=True))
        self._failures = tuple(_failure_table(marker) for marker in self._markers)
        self._firsts = frozenset(marker[0] for marker in self._markers)
        self._matched = [0] * len(self._markers)
        self._held = ("", 0)  # (marker, how much of its beginning is held back)

    def push(self, text: str, *, counts: bool = True) -> MarkerScan:
        """Scan more text; after a hit the scan begins anew. counts: whether a marker that ends in `text` is a hit."""
        held = self._held
        before = held[1]
        if not before and self._firsts.isdisjoint(text):
            return MarkerScan(text)
        for place, char in enumerate(text):
            marker = self._advance(char)
            if marker is not None and counts:
                self._matched = [0] * len(self._markers)
                self._held = ("", 0)
                return MarkerScan(_prefix(held, text, before + place + 1 - len(marker)), marker, text[place + 1 :])
        now = max(self._matched)
        self._held = (self._markers[self._matched.index(now)], now)
        return MarkerScan(_prefix(held, text, before + len(text) - now))

    def finish(self) -> str:
        """The held text: it became no marker."""
        held, self._held = self._held, ("", 0)
        return _prefix(held, "", held[1])

    def _advance(self, char: str) -> str | None:
        """Move every automaton over `char`; the longest marker that ends here."""
        found = None
        for i, (marker, failure) in enumerate(zip(self._markers, self._failures, strict=True)):
            matched = self._matched[i]
            while matched and marker[matched] != char:
                matched = failure[matched - 1]
            matched += marker[matched] == char
            if matched == len(marker):
                found = found or marker
                matched = failure[matched - 1]
            self._matched[i] = matched
        return found


def _failure_table(pattern: str) -> tuple[int, ...]:
    """[i]: length of the longest proper prefix of pattern[:i+1] that is also its suffix."""
    table = [0] * len(pattern)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[length] != pattern[i]:
            length = table[length - 1]
        length += pattern[length] == pattern[i]
        table[i] = length
    return tuple(table)


def _prefix(held: tuple[str, int], text: str, length: int) -> str:
    """The first `length` characters of the held ones followed by `text`; costs `length`, not what is held."""
    marker, count = held
    return marker[:length] if length <= count else marker[:count] + text[: length - count]
