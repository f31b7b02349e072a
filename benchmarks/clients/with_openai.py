"""OpenAI's Python SDK against BASE_URL MODEL: one JSON line a check. Runs in an environment of its own."""

import json
import sys

import checks
import openai

BASE_URL, MODEL = sys.argv[1:3]
client = openai.OpenAI(base_url=BASE_URL, api_key="none", max_retries=0)
ASK = [{"role": "user", "content": "Name one colour."}]


def whole() -> None:
    got = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, temperature=0)
    assert got.choices[0].message.content
    assert got.usage is not None
    assert 1 <= got.usage.completion_tokens <= 8


def stream() -> None:
    options = {"include_usage": True}
    pieces = list(
        client.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=8, temperature=0, stream=True, stream_options=options
        )
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    same = client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, temperature=0)
    assert text == same.choices[0].message.content
    assert pieces[-1].usage is not None
    assert sum(piece.usage is not None for piece in pieces) == 1


def completions() -> None:
    got = client.completions.create(model=MODEL, prompt=["One, two,", "Red, green,"], max_tokens=4, n=2, seed=3)
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]


def logprobs() -> None:
    got = client.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2
    )
    told = got.choices[0].logprobs
    assert told is not None
    assert told.content
    assert all(len(each.top_logprobs) == 2 and each.logprob <= 0 for each in told.content)


def schema() -> None:
    shape = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    got = client.chat.completions.create(
        model=MODEL,
        messages=ASK,
        max_tokens=32,
        response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": shape, "strict": True}},
    )
    assert json.loads(got.choices[0].message.content or "")["colour"] in ("red", "blue")


def models() -> None:
    assert MODEL in [each.id for each in client.models.list()]


def errors() -> None:
    for wrong, kind in (
        ({"model": "no-such-model"}, openai.NotFoundError),
        ({"max_tokens": -1}, openai.BadRequestError),
    ):
        try:
            client.chat.completions.create(**{"model": MODEL, "messages": ASK, "max_tokens": 4, **wrong})
        except kind:
            continue
        else:
            raise AssertionError(f"{wrong} was answered")


def leaving() -> None:
    with client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=400, stream=True) as pieces:
        next(iter(pieces))


checks.run([whole, stream, completions, logprobs, schema, models, errors, leaving])
