"""LangChain's OpenAI classes against BASE_URL MODEL: one JSON line a check. Runs in an environment of its own."""

import sys

import checks
from langchain_openai import ChatOpenAI

BASE_URL, MODEL = sys.argv[1:3]
model = ChatOpenAI(base_url=BASE_URL, model=MODEL, api_key="none", max_tokens=8, temperature=0, max_retries=0)


def invoke() -> None:
    got = model.invoke("Name one colour.")
    assert got.content
    assert got.usage_metadata is not None
    assert got.usage_metadata["output_tokens"] >= 1


def stream() -> None:
    pieces = list(model.stream("Name one colour.", stream_usage=True))
    assert "".join(str(piece.content) for piece in pieces) == model.invoke("Name one colour.").content
    assert any(piece.usage_metadata for piece in pieces)


def batch() -> None:
    assert len(model.batch(["Name a bird.", "Name a tree.", "Name a fish."])) == 3


def structured() -> None:
    shape = {
        "title": "answer",
        "type": "object",
        "properties": {"colour": {"enum": ["red", "blue"]}},
        "required": ["colour"],
        "additionalProperties": False,
    }
    longer = ChatOpenAI(base_url=BASE_URL, model=MODEL, api_key="none", max_tokens=32, max_retries=0)
    shaped = longer.with_structured_output(shape, method="json_schema")
    assert shaped.invoke("Name one colour.")["colour"] in ("red", "blue")


checks.run([invoke, stream, batch, structured])
