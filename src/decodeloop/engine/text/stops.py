"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decodeloop.types import RequestRefused


@dataclass(frozen=True, slots=True)
class StopScan:
    """text: what may be shown now; hit: the stop string that ended the text, which `text` ends just before."""

    text: str
    hit: str | None = None


class StopStrings:
    """Finds the stop string that ends first (of several ending together, the longest), whatever the pieces.

    One Knuth-Morris-Pratt automaton a stop string: linear in the text, and its state is exactly the length of the
    text's suffix that could still become that stop string, which is what has to be held back.
    """

    def __init__(self, stops: Sequence[str], *, min_tokens: int = 0) -> None:
        """min_tokens: a stop string that ends while fewer tokens are out is ordinary text."""
        if any(not stop for stop in stops):
            raise RequestRefused("a stop string must not be empty", param="stop")
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._failures = tuple(_failure_table(stop) for stop in self._stops)
        self._matched = [0] * len(self._stops)
        self._min_tokens = min_tokens
        self._held = ("", 0)  # (stop string, how much of its beginning is held back)

    def push(self, text: str, tokens: int) -> StopScan:
        """Scan more text, completed by output token number `tokens` (from 1). Not to be called after a hit."""
        if not self._stops:
            return StopScan(text)
        active = tokens >= self._min_tokens
        held = self._held
        before = held[1]
        for place, char in enumerate(text):
            stop = self._advance(char)
            if stop is not None and active:
                return StopScan(_prefix(held, text, before + place + 1 - len(stop)), stop)
        now = max(self._matched)
        self._held = (self._stops[self._matched.index(now)], now)
        return StopScan(_prefix(held, text, before + len(text) - now))

    def finish(self) -> str:
        """The held text: it became no stop string."""
        held, self._held = self._held, ("", 0)
        return _prefix(held, "", held[1])

    def _advance(self, char: str) -> str | None:
        """Move every automaton over `char`; the longest stop string that ends here."""
        found = None
        for i, (stop, failure) in enumerate(zip(self._stops, self._failures, strict=True)):
            matched = self._matched[i]
            while matched and stop[matched] != char:
                matched = failure[matched - 1]
            matched += stop[matched] == char
            if matched == len(stop):
                found = found or stop
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
    stop, count = held
    return stop[:length] if length <= count else stop[:count] + text[: length - count]
