"""Journals of what a target answered: an interrupted collection goes on, and answers are told apart."""

from contextlib import closing
from dataclasses import replace

import pytest

from decodeloop.evaluation.lossless.answers import Answer, Arm, Ask, Journal, Remembering

ASK = Ask(messages=({"role": "user", "content": "x"},), temperature=1.0, max_tokens=3)


def test_an_interrupted_collection_goes_on(tmp_path):
    class Breaks:
        asked = 0

        def answers(self, asks, arm, at_once):
            Breaks.asked += len(asks)
            if Breaks.asked > 130:
                raise OSError("gone")
            return [Answer((ask.seed, "text"), None, None) for ask in asks]

    asks = [replace(ASK, seed=seed) for seed in range(200)]
    path = tmp_path / "deep" / "j.jsonl"
    with closing(Journal(path)) as first, pytest.raises(OSError, match="gone"):
        Remembering(Breaks(), first).collect(asks, Arm.PLAIN, at_once=1)
    with path.open("a") as file:
        file.write('["torn')
    Breaks.asked = 0
    with closing(Journal(path)) as kept:
        assert len(kept) == 128
        got = Remembering(Breaks(), kept).collect(asks, Arm.PLAIN, at_once=1)
    assert [answer.tokens for answer in got] == [(seed, "text") for seed in range(200)]
    assert Breaks.asked == 72
    with closing(Journal(path)) as whole:
        assert len(whole) == 200


def test_answers_are_told_apart_by_all_that_was_asked():
    other = [
        replace(ASK, seed=1),
        replace(ASK, temperature=0.5),
        replace(ASK, max_tokens=4),
        replace(ASK, messages=({"role": "user", "content": "y"},)),
    ]
    keys = {ASK.key(Arm.PLAIN, 1, 0), ASK.key(Arm.SERVED, 1, 0), ASK.key(Arm.PLAIN, 2, 0), ASK.key(Arm.PLAIN, 1, 1)}
    assert len(keys | {ask.key(Arm.PLAIN, 1, 0) for ask in other}) == 8
