"""LiteLLM's client against BASE_URL MODEL: one JSON line a check. Runs in an environment of its own."""

import sys

import checks
import litellm

BASE_URL, MODEL = sys.argv[1:3]
ASK = {
    "model": f"openai/{MODEL}",
    "api_base": BASE_URL,
    "api_key": "none",
    "messages": [{"role": "user", "content": "Name one colour."}],
    "max_tokens": 8,
    "temperature": 0,
}


def whole() -> None:
    got = litellm.completion(**ASK)
    assert got.choices[0].message.content
    assert got.usage.completion_tokens >= 1


def stream() -> None:
    text = "".join(piece.choices[0].delta.content or "" for piece in litellm.completion(**ASK, stream=True))
    assert text == litellm.completion(**ASK).choices[0].message.content


def errors() -> None:
    try:
        litellm.completion(**{**ASK, "model": "openai/no-such-model"})
    except litellm.NotFoundError:
        return
    raise AssertionError("a model that isn't there was answered")


checks.run([whole, stream, errors])
