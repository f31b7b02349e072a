"""Stop strings in a stream of text."""

from __future__ import annotations

from collections.abc import Sequence

from decodeloop.engine.text.markers import MarkerScan, MarkerScanner
from decodeloop.types import RequestRefused


class StopStrings:
    """Finds the stop string that ends first (of several ending together, the longest), whatever the pieces."""

    def __init__(self, stops: Sequence[str], *, min_tokens: int = 0) -> None:
        """min_tokens: a stop string that ends while fewer tokens are out is ordinary text."""
        if not all(stops):
            raise RequestRefused("a stop string must not be empty", param="stop")
        self._scanner = MarkerScanner(stops)
        self._min_tokens = min_tokens

    def push(self, text: str, tokens: int) -> MarkerScan:
        """Scan more text, completed by output token number `tokens` (from 1). Not to be called after a hit."""
        return self._scanner.push(text, counts=tokens >= self._min_tokens)

    def finish(self) -> str:
        """The held text: it became no stop string."""
        return self._scanner.finish()
