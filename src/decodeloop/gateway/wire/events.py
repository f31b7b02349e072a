"""Server-sent events as other engines write them: cut from a byte stream, and read for what the gateway must know."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from decodeloop.types import Usage

__all__ = ["AnswerReader", "EventCutter", "EventTooLarge", "Told", "event_data", "texts_of"]

MAX_EVENT_BYTES = 8 * 2**20

_END = re.compile(rb"\r?\n\r?\n|\r\r")
_LINE_END = re.compile(rb"\r\n|\n|\r")


class EventTooLarge(Exception):
    """An event without an end: no engine writes one, and nobody should hold it."""


class EventCutter:
    """Gives events back whole, byte for byte, however the network cut them."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The events that `data` completes, each with the blank line that ends it."""
        if self._rest or b"\r" in data:
            events = self._searched(data)
        else:  # as it mostly is
            *whole, self._rest = data.split(b"\n\n")
            events = [data] if len(whole) == 1 and not self._rest else [event + b"\n\n" for event in whole]
        if len(self._rest) > MAX_EVENT_BYTES:
            raise EventTooLarge
        return events

    def _searched(self, data: bytes) -> list[bytes]:
        searched = max(0, len(self._rest) - 3)
        held = self._rest + data
        events, begin = [], 0
        for end in _END.finditer(held, searched):
            events.append(held[begin : end.end()])
            begin = end.end()
        self._rest = held[begin:]
        return events

    @property
    def rest(self) -> bytes:
        """What has come of an event that hasn't ended."""
        return self._rest


def event_data(event: bytes) -> bytes | None:
    """The data of one event; None for a comment."""
    if event.startswith(b"data: ") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2]
    lines = [line for line in _LINE_END.split(event) if line.startswith(b"data")]
    if not lines:
        return None
    return b"\n".join(line.partition(b":")[2].removeprefix(b" ") for line in lines)


class _Details(Struct):
    cached_tokens: int | None = None


class _Counts(Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Speculation(Struct):
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0


class _Metrics(Struct):
    speculative_decoding: _Speculation | None = None


class _Timings(Struct):
    draft_n: int = 0
    draft_n_accepted: int = 0


class _Piece(Struct):
    content: Any = None
    reasoning_content: Any = None
    reasoning: Any = None
    tool_calls: Any = None


class _Choice(Struct):
    text: Any = None
    delta: _Piece | None = None
    message: _Piece | None = None
    finish_reason: str | None = None
    index: int = 0


class _Answer(Struct):
    choices: list[_Choice] = []
    usage: _Counts | None = None
    metrics: _Metrics | None = None
    timings: _Timings | None = None
    error: Any = None


_DECODER = msgspec.json.Decoder(_Answer)


class Told(Struct, frozen=True):
    """What one event, or a whole body, says.

    content: whether there is text, or a call, for `choice`. usage_only: it has no choice, only the usage.
    finished: (choice, reason) pairs.
    """

    content: bool = False
    choice: int = 0
    usage_only: bool = False
    finished: tuple[tuple[int, str], ...] = ()
    error: Mapping[str, Any] | None = None


NOTHING = Told()
WORDS = Told(content=True)


class AnswerReader:
    """Reads the events of one answer. `usage`: the last complete one that was told; None until then.

    A usage object that lacks a count is of no use to anyone and is ignored; one that comes twice counts once.
    """

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self._drafted = self._accepted = 0

    def read(self, data: bytes) -> Told:
        """What cannot be read says nothing: it is passed on as it is."""
        try:
            answer = _DECODER.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return NOTHING
        if answer.error is not None:
            return Told(error=answer.error if isinstance(answer.error, dict) else {"message": str(answer.error)})
        choices = answer.choices
        if len(choices) == 1 and answer.usage is None and answer.metrics is None and answer.timings is None:
            only = choices[0]
            if not only.index and not only.finish_reason:
                return WORDS if _speaks(only) else NOTHING
        self._count(answer)
        speaking = [choice.index for choice in choices if _speaks(choice)]
        return Told(
            content=bool(speaking),
            choice=speaking[0] if speaking else 0,
            usage_only=not choices and answer.usage is not None,
            finished=tuple([(choice.index, choice.finish_reason) for choice in choices if choice.finish_reason]),
        )

    def _count(self, answer: _Answer) -> None:
        if answer.metrics is not None and answer.metrics.speculative_decoding is not None:
            told = answer.metrics.speculative_decoding
            self._drafted, self._accepted = told.num_draft_tokens, told.num_accepted_draft_tokens
        elif answer.timings is not None:
            self._drafted, self._accepted = answer.timings.draft_n, answer.timings.draft_n_accepted
        counts = answer.usage
        if counts is not None and counts.prompt_tokens is not None and counts.completion_tokens is not None:
            details = counts.prompt_tokens_details
            cached = (details.cached_tokens or 0) if details is not None else 0
            self._tell(counts.prompt_tokens, cached, counts.completion_tokens)
        elif self.usage is not None:
            self._tell(self.usage.prompt, self.usage.cached, self.usage.completion)

    def _tell(self, prompt: int, cached: int, completion: int) -> None:
        verified = self._drafted  # engines draft what they verify
        self.usage = Usage(prompt, cached, completion, self._drafted, verified, self._accepted)


def texts_of(data: bytes) -> list[tuple[int, str]]:
    """(choice, text) of an event's data, or of a whole answer."""
    try:
        choices = _DECODER.decode(data).choices
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return []
    pieces = [(choice, choice.delta or choice.message) for choice in choices]
    texts = [(choice.index, choice.text or (piece and piece.content)) for choice, piece in pieces]
    return [(index, text) for index, text in texts if isinstance(text, str) and text]


def _speaks(choice: _Choice) -> bool:
    if choice.text:
        return True
    piece = choice.delta or choice.message
    return piece is not None and bool(piece.content or piece.reasoning_content or piece.reasoning or piece.tool_calls)
