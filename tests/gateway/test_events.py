"""Other engines' events: cut anywhere, read for what they tell."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.gateway.wire.events import MAX_EVENT_BYTES, AnswerReader, EventCutter, EventTooLarge, event_data
from decodeloop.types import Usage

TEXT = 'data: {"a": "žluťoučký 🐴"}\n\n: note\n\ndata: one\ndata: two\r\n\r\ndata: [DONE]\n\n'.encode()


@given(st.lists(st.integers(1, len(TEXT) - 1), max_size=12))
def test_events_come_whole_however_they_are_cut(cuts):
    edges = [0, *sorted(set(cuts)), len(TEXT)]
    cutter = EventCutter()
    events = [event for begin, end in pairwise(edges) for event in cutter.feed(TEXT[begin:end])]
    assert events == EventCutter().feed(TEXT)
    assert b"".join(events) == TEXT
    assert cutter.rest == b""


def test_every_single_cut():
    whole = EventCutter().feed(TEXT)
    for cut in range(len(TEXT) + 1):
        cutter = EventCutter()
        assert cutter.feed(TEXT[:cut]) + cutter.feed(TEXT[cut:]) == whole
    cutter = EventCutter()
    assert [event for place in range(len(TEXT)) for event in cutter.feed(TEXT[place : place + 1])] == whole


@given(st.lists(st.text("a\n", max_size=6), max_size=6))
def test_blank_lines_end_events_wherever_they_are(pieces):
    cutter = EventCutter()
    events = [event for piece in pieces for event in cutter.feed(piece.encode())]
    assert [*events, cutter.rest] == _by_hand("".join(pieces).encode())


def _by_hand(text: bytes) -> list[bytes]:
    found, begin = [], 0
    while (end := text.find(b"\n\n", begin)) >= 0:
        found.append(text[begin : end + 2])
        begin = end + 2
    return [*found, text[begin:]]


def test_the_data_of_an_event():
    assert event_data(b"data: x\n\n") == b"x"
    assert event_data(b"data:x\n\n") == b"x"
    assert event_data(b"event: e\r\ndata: one\r\ndata: two\r\n\r\n") == b"one\ntwo"
    assert event_data(b": keep-alive\n\n") is None


def test_an_event_without_end_is_refused():
    cutter = EventCutter()
    cutter.feed(b"x" * MAX_EVENT_BYTES)
    with pytest.raises(EventTooLarge):
        cutter.feed(b"x")


def told(reader: AnswerReader, value: object):
    return reader.read(orjson.dumps(value))


def test_usage_is_the_last_complete_one():
    reader = AnswerReader()
    assert told(reader, {"choices": [{"delta": {"content": "x"}}], "usage": None}).content
    assert reader.usage is None
    told(reader, {"choices": [], "usage": {"prompt_tokens": 5}})
    assert reader.usage is None, "half of a usage object is none"
    finish = {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0}]}, "finish_reason": "tool_calls"}]}
    full = {"prompt_tokens": 5, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 3}}
    assert told(reader, {**finish, "usage": full}).finished == ((0, "tool_calls"),)
    assert reader.usage == Usage(5, 3, 2)
    assert told(reader, {"choices": [], "usage": full}).usage_only
    assert reader.usage == Usage(5, 3, 2), "told twice, counted once"
    told(reader, {"choices": [], "usage": {"completion_tokens": 9}})
    assert reader.usage == Usage(5, 3, 2)


@pytest.mark.parametrize(
    "extra",
    [
        {"metrics": {"speculative_decoding": {"num_draft_tokens": 8, "num_accepted_draft_tokens": 5}}},
        {"timings": {"draft_n": 8, "draft_n_accepted": 5, "prompt_ms": 1.5}},
    ],
)
def test_what_was_drafted_and_accepted(extra):
    reader = AnswerReader()
    told(reader, {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9}, **extra})
    assert reader.usage == Usage(5, 0, 9, drafted=8, verified=8, accepted=5)


def test_errors_are_told_and_nonsense_says_nothing():
    reader = AnswerReader()
    assert told(reader, {"error": {"message": "broken", "code": 500}}).error == {"message": "broken", "code": 500}
    assert told(reader, {"error": "broken"}).error == {"message": "broken"}
    for nonsense in (b"{", b"[1]", b'{"choices": 3}', b"\xff", b'{"usage": {"prompt_tokens": "many"}}'):
        assert not reader.read(nonsense).content
    assert reader.usage is None
