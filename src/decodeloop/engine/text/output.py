"""From committed tokens to what a caller reads: detokenizer, stop strings, parsers, in that order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.detokenizer import Detokenizer
from decodeloop.engine.text.parsed import AnswerParser, Parsed
from decodeloop.engine.text.stops import StopStrings
from decodeloop.types import SamplingParams, ToolCallDelta


@dataclass(frozen=True, slots=True)
class TextDelta:
    """What one committed token, or the end, adds to a choice."""

    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    stopped: str | None = None  # the stop string that ended the text; it is not part of `text`
    tokens: int = 0  # so many more of the pushed tokens, oldest first, are delivered: see `Output`


class Output:
    """The readable side of one choice. The commit routine pushes each committed token, then finishes.

    Tokens are delivered with their text, so that text, ids and log-probabilities advance and end together: a token
    whose characters are held back (half a character, a possible stop string) is delivered when they come out, and
    one that lies wholly inside the stop string that ended the text never is.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        params: SamplingParams,
        *,
        parser: AnswerParser | None = None,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        """parser: separates reasoning and tool calls; None: all is text. shown: control tokens that it looks for."""
        self._detokenizer = Detokenizer(tokenizer, shown=shown)
        self._parser = parser
        self._stops = StopStrings(params.stop, min_tokens=params.min_tokens)
        self._spans: deque[tuple[int, int]] = deque()  # (start, end) in characters of undelivered tokens
        self._pushed = 0
        self._seen = 0  # characters detokenized
        self._shown = 0  # characters that passed the stop strings
        self._ended = False

    def push(self, token: int) -> TextDelta:
        """Add a committed token. Once a delta says `stopped`, nothing more may be pushed."""
        assert not self._ended
        self._pushed += 1
        text = self._detokenizer.push(token)
        start, self._seen = self._seen, self._seen + len(text)
        self._spans.append((start, self._seen + self._detokenizer.pending))
        scan = self._stops.push(text, self._pushed)
        self._shown += len(scan.text)
        self._ended = scan.hit is not None
        return self._delta(scan.text, stopped=scan.hit, tokens=self._deliver())

    def finish(self) -> TextDelta:
        """Everything still held back, after the last token. Empty once a stop string ended the text."""
        if self._ended:
            return TextDelta()
        self._ended = True
        text = self._stops.finish() + self._detokenizer.finish()
        tokens = len(self._spans)
        self._spans.clear()
        return self._delta(text, stopped=None, tokens=tokens)

    def _delta(self, text: str, *, stopped: str | None, tokens: int) -> TextDelta:
        if self._parser is None:
            return TextDelta(text=text, stopped=stopped, tokens=tokens)
        parsed = self._parser.push(text) if text else Parsed()
        if self._ended:
            parsed = parsed.then(self._parser.finish())
        return TextDelta(parsed.content, parsed.reasoning, parsed.tool_calls, stopped, tokens)

    def _deliver(self) -> int:
        delivered = 0
        while self._spans:
            start, end = self._spans[0]
            if end > self._shown and not (self._ended and start < self._shown):
                break
            self._spans.popleft()
            delivered += 1
        return delivered
