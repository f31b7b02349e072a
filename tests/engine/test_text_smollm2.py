"""The text layer on the default model's own tokenizer and template."""

import json
import random

import jsonschema
import numpy as np
import pytest
import tokenizers
from transformers import PreTrainedTokenizerFast

from cuts import Answer
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.engine.text.detokenizer import Detokenizer
from decodeloop.engine.text.grammar import GrammarCompiler
from decodeloop.engine.text.output import Output
from decodeloop.engine.text.parsing import Parsing
from decodeloop.types import ChatPrompt, GrammarSpec, Request, SamplingParams
from strings import tokenizer_strings
from test_text_chat import CHATS
from test_text_grammar import SCHEMAS
from test_text_parsing import TOOLS, WEATHER, request, run

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def checkpoint(default_model_path):
    return open_checkpoint(default_model_path)


@pytest.fixture(scope="module")
def tokenizer(checkpoint):
    return checkpoint.tokenizer


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer)


@pytest.fixture(scope="module")
def template(checkpoint):
    return ChatTemplate(checkpoint.chat_template, checkpoint.tokenizer, family=checkpoint.config.family)


def test_streamed_text_is_the_decoded_text(tokenizer):
    for text in tokenizer_strings(("<|im_end|>",))[:300]:
        tokens, detokenizer = tokenizer.encode(text), Detokenizer(tokenizer)
        pieces = [*map(detokenizer.push, tokens), detokenizer.finish()]
        assert "".join(pieces) == tokenizer.decode(tokens)


def test_random_ids_stream_to_their_decoding(tokenizer):
    rng = random.Random(0)
    for _ in range(50):
        tokens, detokenizer = [rng.randrange(tokenizer.vocab_size) for _ in range(40)], Detokenizer(tokenizer)
        assert "".join([*map(detokenizer.push, tokens), detokenizer.finish()]) == tokenizer.decode(tokens)


@pytest.mark.parametrize("stop", ["STOP", "\n\n", "🧑🏽‍🚀", "ů", " žlu"])
def test_a_stop_string_ends_czech_and_emoji_where_it_begins(tokenizer, stop):
    text = f"Příliš žluťoučký kůň 👩‍💻 úpěl. STOP\n\nA 🧑🏽‍🚀 dál.{stop}!"
    tokens = tokenizer.encode(text)
    output, got, delivered = Output(tokenizer, SamplingParams(stop=(stop,))), "", 0
    for token in tokens:
        delta = output.push(token)
        got, delivered = got + delta.text, delivered + delta.tokens
        assert "�" not in delta.text
        if delta.stopped:
            break
    assert (got, delta.stopped) == (text[: text.index(stop)], stop)
    shown = tokenizer.decode(tokens[:delivered])
    assert shown.startswith(got)
    assert tokenizer.decode(tokens[: delivered - 1]) != shown


@pytest.mark.parametrize("chat", [chat for chat in CHATS if chat != "tool"])
def test_the_models_template_renders_as_in_transformers(checkpoint, template, chat):
    reference = PreTrainedTokenizerFast(tokenizer_object=tokenizers.Tokenizer(tokenizers.models.BPE()))
    expected = reference.apply_chat_template(
        CHATS[chat], chat_template=checkpoint.chat_template, add_generation_prompt=True, tokenize=False
    )
    assert template.render(ChatPrompt(tuple(CHATS[chat]))) == expected


@pytest.mark.parametrize("name", ["record", "array of records", "pattern", "one of, disjoint", "odd keys", "any"])
def test_allowed_tokens_lead_to_json_of_the_schema(tokenizer, compiler, name):
    start = compiler.compile(GrammarSpec("json_schema", json.dumps(SCHEMAS[name])))
    for seed in range(4):
        matcher, rng, tokens = start.fork(), random.Random(seed), []
        while not (allowed := np.flatnonzero(matcher.allowed())).size or allowed[0] not in tokenizer.eos_ids:
            going = allowed
            if len(tokens) > 30:
                closing = [t for char in '"}],01:n' for t in tokenizer.encode(char) if t in allowed]
                going = closing[:1] or allowed
            tokens.append(int(rng.choice(list(going))))
            assert matcher.accept(tokens[-1])
            assert len(tokens) < 1000
        jsonschema.validate(json.loads(tokenizer.decode(tokens)), SCHEMAS[name])


def test_a_schema_rolls_back_over_the_models_tokens(tokenizer, compiler):
    text = '{"name": "Žofie 👩‍💻", "age": 41}'
    matcher = compiler.compile(GrammarSpec("json_schema", json.dumps(SCHEMAS["record"])))
    tokens, masks = tokenizer.encode(text), []
    for token in tokens:
        masks.append(matcher.allowed().copy())
        assert matcher.accept(token)
    assert np.flatnonzero(matcher.allowed()).tolist() == sorted(tokenizer.eos_ids)
    for count in range(1, len(tokens) + 1):
        matcher.rollback(count)
        assert (matcher.allowed() == masks[len(tokens) - count]).all()
        assert all(map(matcher.accept, tokens[len(tokens) - count :]))


def test_a_required_tool_is_called_in_the_form_the_model_was_taught(tokenizer, compiler, template):
    parsing = Parsing(tokenizer, template)
    asked: Request = request(TOOLS, "required")
    imposed = parsing.grammar(asked)
    matcher = compiler.compile(imposed.spec, param=imposed.param)
    text = '<tool_call>[{"name": "get_weather", "arguments": {"city": "Plzeň", "days": 3}}]</tool_call>'
    tokens = tokenizer.encode(text)
    assert all(map(matcher.accept, tokens))
    assert np.flatnonzero(matcher.allowed()).tolist() == sorted(tokenizer.eos_ids)
    answer, _ = run(parsing.opener(asked)(0), tokens)
    assert answer == Answer("", "", (("call-r1-0-0", "get_weather", '{"city": "Plzeň", "days": 3}'),))
    jsonschema.validate(json.loads(answer.calls[0][2]), WEATHER)
    assert "get_weather" in template.render(asked.prompt)
