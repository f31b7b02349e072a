"""Streams, seeds and limits over HTTP. (Cases 6, 17, 21.)"""

import json
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest

LINES = ["Příliš žluťoučký kůň 🐎 úpěl ďábelské ódy.", "🏳️‍🌈👨‍👩‍👧‍👦 é", "日本語と🎉"]
MESSAGES = [{"role": "user", "content": f"{LINES[0]} {LINES[1]} {LINES[2]}"}]


def events(stack, **body):
    with httpx.stream("POST", f"{stack.url}/v1/chat/completions", json={**body, "stream": True}, timeout=60) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: {"):
                yield json.loads(line.removeprefix("data: "))


def pieces(stack, **body):
    return [choice["delta"].get("content") or "" for event in events(stack, **body) for choice in event["choices"]]


@pytest.mark.parametrize("depth", range(1, 9))
def test_no_character_is_ever_broken(served, depth):
    """Texts of several bytes a character, drafted by copying them, in blocks of every length."""
    for line in LINES:
        got = pieces(
            served,
            messages=MESSAGES,
            guided_choice=[line],
            temperature=0,
            decodeloop={"speculation": "force", "draft_len": depth},
        )
        assert "".join(got) == line
        assert not any("\ufffd" in piece for piece in got)


def test_a_character_cut_by_the_limit_comes_last_and_once(served):
    """🐎 is four tokens of this vocabulary: up to three of them are held, and flushed as one replacement character."""
    for cut in range(1, 5):
        got = pieces(served, messages=MESSAGES, guided_choice=["🐎"], temperature=0, max_tokens=cut)
        assert "".join(got) == ("🐎" if cut == 4 else "\ufffd")
        assert [piece for piece in got if piece] == ["".join(got)]


def test_unseeded_requests_are_independent_and_each_can_be_replayed(served, plain):
    def ask(stack, **fields):
        return stack.client().completions.create(
            model="model", prompt="the cat", max_tokens=12, temperature=1, **fields
        )

    with ThreadPoolExecutor(8) as clients:
        answers = list(clients.map(lambda _: ask(served), range(8)))
    seeds = {answer.decodeloop["seed"] for answer in answers}
    assert len(seeds) == len({answer.choices[0].text for answer in answers}) == 8
    for answer in answers[:3]:
        assert ask(plain, seed=answer.decodeloop["seed"]).choices[0].text == answer.choices[0].text


def test_prompts_beyond_the_limit_leave_live_streams_alone(served):
    body = {"messages": MESSAGES, "max_tokens": 60, "temperature": 1, "seed": 4, "ignore_eos": True}
    expected = "".join(pieces(served, **body))
    live = events(served, **body)
    text = "".join((next(live)["choices"][0]["delta"].get("content") or "") for _ in range(3))
    for length in (255, 256, 257, 5000):
        ask = {"model": "model", "prompt": [5] * length, "max_tokens": 9}
        if length < 256:
            assert served.client().completions.create(**ask).choices[0].finish_reason == "length"
        else:
            with pytest.raises(openai.BadRequestError, match="at most 255"):
                served.client().completions.create(**ask)
    text += "".join(choice["delta"].get("content") or "" for event in live for choice in event["choices"])
    assert text == expected
