"""The requests of a load: good ones of every kind, and all the others that a public server gets."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from load_asks import Ask, Violation

TEXT = "the cat sat on a mat and wrote def add(a, b): return a + b; 猫 and 🎉 looked on; příliš žluťoučký kůň"
WORDS = TEXT.split()
SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99}, "kind": {"enum": ["cat", "dog", "🐎"]}},
    "required": ["id", "kind"],
    "additionalProperties": False,
}


class Mix:
    """Draws requests: good ones of every kind, and all the others that a public server gets."""

    def __init__(self, draw: random.Random, *, context: int, max_tokens: int) -> None:
        self._draw, self._context, self._max_tokens = draw, context, max_tokens
        self._kinds: dict[str, tuple[int, Callable[[], Ask]]] = {
            "chat": (24, self._chat),
            "completion": (16, self._completion),
            "choices": (8, self._choices),
            "json": (8, self._json),
            "leaver": (16, self._leaver),
            "leaver at once": (4, lambda: self._chat(leave_after=0)),
            "slow reader": (3, lambda: self._chat(pause_s=0.05)),
            "too long": (5, self._too_long),
            "bad json": (5, self._bad_json),
            "wrong field": (8, self._wrong_field),
            "impossible": (3, self._impossible),
        }

    def kinds(self) -> list[str]:
        return list(self._kinds)

    def next(self, kind: str | None = None) -> tuple[str, Ask]:
        if kind is None:
            kind = self._draw.choices(list(self._kinds), [weight for weight, _ in self._kinds.values()])[0]
        return kind, self._kinds[kind][1]()

    def _text(self, most: int = 40) -> str:
        words = self._draw.choices(WORDS, k=self._draw.randrange(1, most))
        return " ".join(words * self._draw.choice((1, 1, 3)))[: self._context // 2]

    def _body(self, **fields: Any) -> dict[str, Any]:
        draw = self._draw
        body = {"stream": True, "max_tokens": draw.randrange(1, self._max_tokens + 1), **fields}
        options = {
            "temperature": draw.choice((0, 0.7, 1.0, 1.5)),
            "top_p": draw.choice((0.5, 0.9)),
            "top_k": draw.choice((1, 5, 50)),
            "min_p": 0.05,
            "frequency_penalty": 0.5,
            "repetition_penalty": 1.2,
            "stop": draw.choice((["."], ["cat", "\n"], "🎉")),
            "seed": draw.randrange(2**53),
            "stream_options": {"include_usage": True, "continuous_usage_stats": draw.random() < 0.5},
            "decodeloop": draw.choice(
                (
                    {"speculation": "off"},
                    {"speculation": "force", "draft_len": 8},
                    {"deadline_ms": 3000},
                    {"priority": "batch"},
                )
            ),
        }
        for name in draw.sample(list(options), k=draw.randrange(len(options))):
            if name != "stream_options" or body["stream"]:
                body.setdefault(name, options[name])
        return body

    def _chat(self, **how: Any) -> Ask:
        body = self._body(messages=[{"role": "user", "content": self._text()}], stream=self._draw.random() < 0.85)
        check = None if "leave_after" in how else finishes(1, body["max_tokens"])
        return Ask("/v1/chat/completions", encoded(body), check=check, **how)

    def _completion(self) -> Ask:
        body = self._body(prompt=self._text(), logprobs=self._draw.choice((None, 0, 5)))
        return Ask("/v1/completions", encoded(body), check=finishes(1, body["max_tokens"]))

    def _choices(self) -> Ask:
        n, prompts = self._draw.randrange(1, 4), self._draw.randrange(1, 3)
        body = self._body(prompt=[self._text(10) for _ in range(prompts)], n=n)
        return Ask("/v1/completions", encoded(body), check=finishes(n * prompts, body["max_tokens"]))

    def _json(self) -> Ask:
        wanted = {"type": "json_schema", "json_schema": {"name": "pet", "schema": SCHEMA}}
        body = self._body(
            messages=[{"role": "user", "content": self._text()}], response_format=wanted, max_tokens=64, stop=[]
        )
        return Ask("/v1/chat/completions", encoded(body), check=is_json)

    def _leaver(self) -> Ask:
        return self._chat(leave_after=self._draw.randrange(1, 12))

    def _too_long(self) -> Ask:
        length = self._context + self._draw.choice((0, 1, 1000))
        body = {"prompt": [5] * length, "stream": self._draw.random() < 0.5}
        return Ask("/v1/completions", encoded(body), (400,), "context_length_exceeded")

    def _bad_json(self) -> Ask:
        whole = encoded(self._body(prompt=self._text()))
        cut = whole[: self._draw.randrange(len(whole))]
        return Ask("/v1/completions", self._draw.choice((cut, b"", b"\xff\xfe{}", b"[1, 2]", b'{"a":' * 500)), (400,))

    def _wrong_field(self) -> Ask:
        wrong: list[tuple[dict[str, Any], int]] = [
            ({"temperature": -1}, 400),
            ({"n": 10**6}, 400),
            ({"max_tokens": 0}, 400),
            ({"logit_bias": {"99999999": 1}}, 400),
            ({"seed": 2**60}, 400),
            ({"stop": ["x" * 5000]}, 400),
            ({"prompt": [10**9]}, 400),
            ({"decodeloop": {"drafter": "nobody"}}, 400),
            ({"no_such_field": 1}, 400),
            ({"model": "nobody"}, 404),
        ]
        fields, status = self._draw.choice(wrong)
        return Ask("/v1/completions", encoded({**self._body(prompt=self._text()), **fields}), (status,))

    def _impossible(self) -> Ask:
        """Everything excluded by the request itself: found out at the first row."""
        body = {"prompt": self._text(), "allowed_token_ids": [7], "bad_token_ids": [7], "stream": True}
        return Ask("/v1/completions", encoded(body), (400,), "nothing_left")


def encoded(body: dict[str, Any]) -> bytes:
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def finishes(choices: int, max_tokens: int) -> Callable[[list[dict[str, Any]]], None]:
    """Every choice ends once, usage is within what was asked, and no character was broken."""

    def check(events: list[dict[str, Any]]) -> None:
        ends = Counter(c["index"] for e in events for c in e["choices"] if c["finish_reason"] is not None)
        if ends != Counter(range(choices)):
            raise Violation(f"{choices} choices, ends {dict(ends)}")
        usages = [event["usage"] for event in events if event.get("usage")]
        if usages and usages[-1]["completion_tokens"] > choices * max_tokens:
            raise Violation(f"usage {usages[-1]} with max_tokens {max_tokens}")

    return check


def is_json(events: list[dict[str, Any]]) -> None:
    choices = [choice for event in events for choice in event["choices"]]
    text = "".join((c.get("delta") or c.get("message") or {}).get("content") or "" for c in choices)
    if any(choice["finish_reason"] == "stop" for choice in choices) and set(json.loads(text)) != {"id", "kind"}:
        raise Violation(f"{text!r} is not what the schema says")
