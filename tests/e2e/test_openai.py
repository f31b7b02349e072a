"""The official client against the whole product, on a tiny model of random weights."""

import json

import openai
import pytest

MESSAGES = [{"role": "user", "content": "cat sat on the mat, cat sat on the mat, cat"}]


def streamed(stack, **body):
    with stack.client().chat.completions.create(
        model="model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **body
    ) as stream:
        return list(stream)


def text_of(chunks):
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


@pytest.mark.parametrize("temperature", [0, 1])
def test_speculation_changes_no_answer_and_any_answer_can_be_replayed(served, plain, temperature):
    first = served.client().chat.completions.create(
        model="model", messages=MESSAGES, temperature=temperature, max_tokens=40
    )
    seed = first.decodeloop["seed"]
    assert 0 <= seed < 2**53
    for stack in (served, plain):
        again = stack.client().chat.completions.create(
            model="model", messages=MESSAGES, temperature=temperature, max_tokens=40, seed=seed
        )
        assert again.choices[0].message.content == first.choices[0].message.content
        assert again.usage.completion_tokens == first.usage.completion_tokens
        assert text_of(streamed(stack, temperature=temperature, max_tokens=40, seed=seed)) == (
            first.choices[0].message.content
        )


def test_a_stream_carries_usage_and_speculation(served):
    chunks = streamed(served, temperature=0, max_tokens=40, extra_body={"ignore_eos": True})
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 40
    assert all(chunk.usage is None for chunk in chunks[:-1])
    report = next(c.decodeloop for c in chunks if getattr(c, "decodeloop", None))
    assert report["drafted"] >= report["verified"] >= report["accepted"]
    assert report["steps"] + report["accepted"] - report["discarded"] == 39  # the prompt's step gave the first token


def test_body_field_steers_speculation(served):
    def ask(**wanted):
        answer = served.client().chat.completions.create(
            model="model", messages=MESSAGES, temperature=0, max_tokens=30, seed=1, extra_body={"decodeloop": wanted}
        )
        return answer.choices[0].message.content, answer.decodeloop

    off, forced = ask(speculation="off"), ask(speculation="force", draft_len=2, drafter="suffix")
    assert off[0] == forced[0]
    assert off[1]["drafted"] == 0
    assert set(off[1]["reasons"]) == {"off_user"}
    assert forced[1]["drafter"] in ("suffix", None)
    with pytest.raises(openai.BadRequestError, match="choose from: ngram, suffix"):
        ask(drafter="eagle9")
    with pytest.raises(openai.BadRequestError, match="between 0 and 12"):
        ask(draft_len=99)
    with pytest.raises(openai.BadRequestError, match="depth"):
        ask(depth=3)


def test_choices_logprobs_and_stops(served, plain):
    def ask(stack, **body):
        return stack.client().completions.create(model="model", prompt="the cat sat", seed=5, **body)

    for body in (
        {"n": 3, "temperature": 1, "max_tokens": 12},
        {"logprobs": 3, "temperature": 0, "max_tokens": 12},
        {"temperature": 1, "max_tokens": 30, "stop": ["a", "ed"]},
        {"temperature": 1, "max_tokens": 20, "presence_penalty": 1.5, "extra_body": {"min_p": 0.02, "top_k": 40}},
        {"temperature": 1, "max_tokens": 20, "logit_bias": {"70": 5, "71": -100}},
    ):
        mine, theirs = ask(served, **body), ask(plain, **body)
        assert [choice.text for choice in mine.choices] == [choice.text for choice in theirs.choices]
        assert mine.usage.completion_tokens == theirs.usage.completion_tokens
        for a, b in zip(mine.choices, theirs.choices, strict=True):
            assert a.finish_reason == b.finish_reason
            if a.logprobs is not None:
                assert a.logprobs.tokens == b.logprobs.tokens
                assert a.logprobs.token_logprobs == pytest.approx(b.logprobs.token_logprobs, abs=1e-4)


def test_thirty_parallel_json_answers_are_valid(served):
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "minimum": 0, "maximum": 9},
            "tags": {"type": "array", "maxItems": 2, "items": {"enum": ["a", "b"]}},
        },
        "required": ["id", "tags"],
        "additionalProperties": False,
    }
    answer = served.client().chat.completions.create(
        model="model",
        messages=MESSAGES,
        n=30,
        seed=8,
        temperature=1,
        max_tokens=120,
        response_format={"type": "json_schema", "json_schema": {"name": "t", "schema": schema}},
    )
    for choice in answer.choices:
        assert choice.finish_reason == "stop"
        assert set(json.loads(choice.message.content)) == {"id", "tags"}


@pytest.mark.parametrize("extra", [-1, 0, 1])
def test_prompts_at_the_context_limit(served, extra):
    prompt = [5] * (256 + extra)
    ask = {"model": "model", "prompt": prompt, "max_tokens": 5, "temperature": 0}
    if extra < 0:
        assert served.client().completions.create(**ask).usage.completion_tokens == 1
    else:
        with pytest.raises(openai.BadRequestError, match="at most 255") as refused:
            served.client().completions.create(**ask)
        assert refused.value.code == "context_length_exceeded"


def test_a_disconnect_frees_the_sequence(served):
    stream = served.client().chat.completions.create(
        model="model", messages=MESSAGES, stream=True, max_tokens=200, temperature=1, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    assert served.leaked_blocks() == 0


def test_the_models_and_pages(served):
    assert [model.id for model in served.client().models.list()] == ["model"]
    with pytest.raises(openai.NotFoundError):
        served.client().chat.completions.create(model="other", messages=MESSAGES)
