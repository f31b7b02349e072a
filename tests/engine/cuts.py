"""A text cut into pieces in every way that matters, and what a parser makes of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from decodeloop.engine.text.parsed import AnswerParser


class Answer(NamedTuple):
    content: str = ""
    reasoning: str = ""
    calls: tuple[tuple[str, str, str], ...] = ()  # (id, name, arguments)


def cuts_in_two(text: str) -> Iterator[list[str]]:
    for at in range(len(text) + 1):
        yield [text[:at], text[at:]]


def cut_at(text: str, places: Iterable[int]) -> list[str]:
    edges = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def read(parser: AnswerParser, pieces: Iterable[str]) -> Answer:
    """The pieces' sum, as a client adds them up; checks that ids and names come once, first."""
    content, reasoning, calls = "", "", {}
    for parsed in [*(parser.push(piece) for piece in pieces), parser.finish()]:
        content, reasoning = content + parsed.content, reasoning + parsed.reasoning
        for delta in parsed.tool_calls:
            if delta.index in calls:
                assert delta.id is None
                assert delta.name is None
            else:
                assert delta.index == len(calls)
                calls[delta.index] = [delta.id, delta.name, ""]
            calls[delta.index][2] += delta.arguments
    return Answer(content, reasoning, tuple(map(tuple, calls.values())))


def read_every_cut(new_parser: Callable[[], AnswerParser], text: str) -> Answer:
    """What the parser makes of `text`, which must be the same whole, cut in two anywhere, and in single characters."""
    whole = read(new_parser(), [text])
    for pieces in [*cuts_in_two(text), list(text)]:
        assert read(new_parser(), pieces) == whole, pieces
    return whole
