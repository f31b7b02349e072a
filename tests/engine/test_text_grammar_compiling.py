"""Compiling grammars: faulty and hostile ones are refused in words, others are compiled once and kept within bounds."""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from decodeloop.engine.text import grammar
from decodeloop.engine.text.grammar import GrammarCompiler
from decodeloop.types import GrammarSpec, RequestRefused
from toy_tokenizer import CONTROL, ToyTokenizer

TOKENIZER = ToyTokenizer()
COMPILER = GrammarCompiler(TOKENIZER)


@pytest.mark.parametrize(
    ("spec", "words", "param"),
    [
        (GrammarSpec("json_schema", '{"type": "strnig"}'), "^Invalid type: strnig", "response_format"),
        (GrammarSpec("json_schema", '{"type": "object"'), "not valid JSON", "response_format"),
        (GrammarSpec("json_schema", "[" * 100_000), "not valid JSON", "response_format"),
        (GrammarSpec("json_schema", "[1]"), "must be an object", "response_format"),
        (GrammarSpec("json_schema", '{"not": {"type": "string"}}'), "not", "response_format"),
        (GrammarSpec("json_schema", '{"not": {}, "x-guidance": {"lenient": true}}'), "not", "response_format"),
        (GrammarSpec("json_schema", '{"uniqueItems": true}'), "uniqueItems", "response_format"),
        (GrammarSpec("json_schema", '{"$ref": "http://a.example/b.json"}'), "a.example", "response_format"),
        (GrammarSpec("json_schema", "false"), "must be an object", "response_format"),
        (GrammarSpec("json_schema", '{"allOf": [{"type": "null"}, {"type": "string"}]}'), "Unsat", "response_format"),
        (GrammarSpec("json_schema", '{"$ref": "#"}'), ".+", "response_format"),
        (GrammarSpec("regex", "(a"), "unclosed group", "structured_outputs"),
        (GrammarSpec("lark", "start: nowhere"), "nowhere", "structured_outputs"),
        (GrammarSpec("choice", "[]"), "non-empty list", "structured_outputs"),
        (GrammarSpec("choice", '[1, "a"]'), "list of strings", "structured_outputs"),
        (GrammarSpec("yaml", "a"), "choose from: json_object, json_schema, regex", "structured_outputs"),
        (GrammarSpec("regex", "a" * 600_000), "more than 131072 characters", "structured_outputs"),
    ],
)
def test_a_faulty_grammar_is_refused_in_its_own_words(spec, words, param):
    for _ in range(2):  # compiled, then remembered
        with pytest.raises(RequestRefused, match=words) as refusal:
            COMPILER.compile(spec)
        assert (refusal.value.status, refusal.value.param) == (400, param)
    with pytest.raises(RequestRefused, match=words) as refusal:
        COMPILER.compile(spec, param="tools")
    assert refusal.value.param == "tools"


HOSTILE = {
    "intersections": json.dumps(
        {"allOf": [{"type": "string", "pattern": f".*[a-{chr(98 + i)}].{{{i}}}x.*"} for i in range(24)]}
    ),
    "depth": '{"items":' * 500 + "{}" + "}" * 500,
    "product": json.dumps(
        {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {"type": "string"}}} for j in range(6)]} for i in range(8)]}
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_and_remembered(name, monkeypatch):
    compiler, spec = GrammarCompiler(TOKENIZER), GrammarSpec("json_schema", HOSTILE[name])
    with pytest.raises(RequestRefused) as first:
        compiler.compile(spec)
    monkeypatch.setattr(grammar, "_try_compiling", None)  # a second trial would fail
    with pytest.raises(RequestRefused) as second:
        compiler.compile(spec)
    assert first.value.message == second.value.message
    assert len(first.value.message) <= 1000


def test_the_first_to_ask_compiles_for_all(monkeypatch):
    compiler, trials = GrammarCompiler(TOKENIZER), []
    monkeypatch.setattr(grammar, "_try_compiling", lambda source, vocabulary, param: trials.append(source))
    with ThreadPoolExecutor(8) as pool:
        matchers = list(pool.map(lambda _: compiler.compile(GrammarSpec("regex", "ab*")), range(30)))
    assert len(trials) == 1
    assert matchers[0].accept(TOKENIZER.encode("a")[0])
    assert not matchers[1].allowed()[TOKENIZER.encode("b")[0]]


def test_the_cache_is_bounded(monkeypatch):
    monkeypatch.setattr(grammar, "MAX_CACHED", 3)
    compiler = GrammarCompiler(TOKENIZER)
    for i in range(10):
        compiler.compile(GrammarSpec("choice", json.dumps([str(i)])))
        assert len(compiler._compiled) <= 3


def test_a_vocabulary_with_ids_that_have_no_bytes():
    padded = ToyTokenizer(control=(*CONTROL, *("" for _ in range(40))))
    matcher = GrammarCompiler(padded).compile(GrammarSpec("regex", "a+"))
    assert matcher.allowed().shape == (padded.vocab_size,)
    assert np.flatnonzero(matcher.allowed()).tolist() == [97]
