"""OpenAI's own client, against a live server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from decodeloop.types import (
    ChatPrompt,
    Chunk,
    FinishReason,
    Report,
    Request,
    RequestRefused,
    TokenLogprob,
    ToolCallDelta,
    Usage,
)
from live import Live, served
from scripted import MODEL, ScriptedUpstream, Step, report

HI: list[Any] = [{"role": "user", "content": "Hi"}]
TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]


def script(request: Request) -> Iterable[Step]:
    """Does what the request asks of it."""
    prompt = request.prompt
    wants_tool = isinstance(prompt, ChatPrompt) and prompt.tool_choice != "none"
    for choice in range(request.n):
        last = choice == request.n - 1
        if wants_tool:
            yield Chunk(
                index=choice, tool_calls=(ToolCallDelta(0, f"call_{choice}", "look", '{"at": '),), token_ids=(1,)
            )
            yield Chunk(index=choice, tool_calls=(ToolCallDelta(0, arguments='"x"}'),), token_ids=(2,))
        else:
            for text in ('{"a"', ": 1}") if request.params.grammar else ("Hel", f"lo {choice} 😀"):
                entry = TokenLogprob(1, text, text.encode(), -0.5, (TokenLogprob(1, text, text.encode(), -0.5),))
                asked = request.params.logprobs is not None
                yield Chunk(index=choice, text=text, token_ids=(1,), logprobs=(entry,) if asked else ())
        yield Chunk(
            index=choice,
            finish_reason=FinishReason.TOOL_CALLS if wants_tool else FinishReason.STOP,
            usage=Usage(3, 1, 2 * request.n) if last else None,
            report=_report(request) if last else None,
        )


def _report(request: Request) -> Report:
    return report(request)


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    with served(ScriptedUpstream(script)) as live:
        yield live


@pytest.fixture
def client(live: Live) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "decodeloop"


def test_chat(client: OpenAI) -> None:
    got = client.chat.completions.create(model=MODEL, messages=HI, n=2, seed=4)
    assert [choice.message.content for choice in got.choices] == ["Hello 0 😀", "Hello 1 😀"]
    assert got.usage is not None
    assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (3, 4)
    assert got.usage.prompt_tokens_details is not None
    assert got.usage.prompt_tokens_details.cached_tokens == 1
    assert got.model_extra is not None
    assert got.model_extra["decodeloop"]["seed"] == 4


def test_chat_stream(client: OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=HI, stream=True, n=2, stream_options={"include_usage": True}
        )
    )
    texts = ["", ""]
    for chunk in chunks[:-1]:
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
        assert chunk.usage is None
    assert texts == ["Hello 0 😀", "Hello 1 😀"]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 7


def test_the_clients_own_stream_helper(client: OpenAI) -> None:
    with client.chat.completions.stream(model=MODEL, messages=HI, logprobs=True, top_logprobs=1) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello 0 😀"
    assert {"content.delta", "content.done", "logprobs.content.delta"} <= kinds


def test_completions(client: OpenAI) -> None:
    got = client.completions.create(model=MODEL, prompt=["a", "b"], logprobs=1)
    assert [(choice.index, choice.text) for choice in got.choices] == [(0, "Hello 0 😀"), (1, "Hello 0 😀")]
    assert got.choices[0].logprobs is not None
    assert got.choices[0].logprobs.text_offset == [0, 3]
    streamed = client.completions.create(model=MODEL, prompt="a", stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "Hello 0 😀"


def test_tools(client: OpenAI) -> None:
    got = client.chat.completions.create(model=MODEL, messages=HI, tools=TOOLS, tool_choice="required")
    (call,) = got.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert (call.id, call.function.name, call.function.arguments) == ("call_0", "look", '{"at": "x"}')
    assert got.choices[0].finish_reason == "tool_calls"
    with client.chat.completions.stream(model=MODEL, messages=HI, tools=TOOLS) as stream:
        final = stream.get_final_completion()
    (again,) = final.choices[0].message.tool_calls or []
    assert (again.id, again.function.arguments) == ("call_0", '{"at": "x"}')


def test_logprobs(client: OpenAI) -> None:
    got = client.chat.completions.create(model=MODEL, messages=HI, logprobs=True, top_logprobs=1)
    assert got.choices[0].logprobs is not None
    content = got.choices[0].logprobs.content or []
    assert [entry.logprob for entry in content] == [-0.5, -0.5]
    assert content[1].top_logprobs[0].bytes == list("lo 0 😀".encode())


def test_response_format(client: OpenAI) -> None:
    from pydantic import BaseModel

    class Answer(BaseModel):
        a: int

    got = client.chat.completions.parse(model=MODEL, messages=HI, response_format=Answer)
    assert got.choices[0].message.parsed == Answer(a=1)


def test_extra_body_controls_speculation(client: OpenAI, live: Live) -> None:
    client.chat.completions.create(
        model=MODEL, messages=HI, extra_body={"decodeloop": {"speculation": "off"}, "ignore_eos": True, "top_k": 4}
    )
    request = live.upstream.requests[-1]
    assert request.speculation.mode == "off"
    assert (request.params.ignore_eos, request.params.top_k) == (True, 4)


def test_errors_are_the_clients_own(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-9", messages=HI)
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=HI, temperature=3)
    assert bad.value.param == "temperature"


def test_an_error_in_mid_stream_raises() -> None:
    def fails(request: Request) -> Iterable[Step]:
        yield Chunk(text="x")
        yield RequestRefused("the engine died", status=500)

    with (
        served(ScriptedUpstream(fails)) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = client.chat.completions.create(model=MODEL, messages=HI, stream=True)
        with pytest.raises(openai.APIError, match="the engine died"):
            list(stream)


def test_the_client_retries_when_told_to() -> None:
    def busy_once(request: Request) -> Iterable[Step]:
        if len(upstream.requests) == 1:
            yield RequestRefused("the queue is full", status=429)
        yield from script(request)

    upstream = ScriptedUpstream(busy_once)
    with (
        served(upstream, retry_after_s=0) as live,
        OpenAI(base_url=f"{live.url}/v1", api_key="none", max_retries=2) as client,
    ):
        assert client.chat.completions.create(model=MODEL, messages=HI).choices
    assert len(upstream.requests) == 2


def test_keys() -> None:
    with served(ScriptedUpstream(script), api_keys=("right",)) as live:
        with OpenAI(base_url=f"{live.url}/v1", api_key="right") as client:
            assert client.models.list().data
        with (
            OpenAI(base_url=f"{live.url}/v1", api_key="wrong") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.models.list()


def test_async(live: Live) -> None:
    async def run() -> None:
        async with AsyncOpenAI(base_url=f"{live.url}/v1", api_key="none") as client:
            stream = await client.chat.completions.create(model=MODEL, messages=HI, stream=True)
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream]
            assert "".join(texts) == "Hello 0 😀"
            got = await client.completions.create(model=MODEL, prompt=[1, 2, 3])
            assert got.choices[0].text == "Hello 0 😀"

    asyncio.run(run())
