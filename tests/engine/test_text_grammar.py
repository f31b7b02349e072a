"""What a grammar lets a model write, token by token."""

import json
import random
import re

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.engine.text.grammar import GrammarCompiler
from decodeloop.types import GrammarSpec
from toy_tokenizer import ToyTokenizer

TOKENIZER = ToyTokenizer(('{"', '":', '",', '"}', ' "', "\n  ", "true", "null", "12", "ř", "á", '"]', "},", "\\u", "č"))
COMPILER = GrammarCompiler(TOKENIZER)
EOS = sorted(TOKENIZER.eos_ids)


def record(required=(), **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required or properties),
        "additionalProperties": False,
    }


STRING, INTEGER, NUMBER = {"type": "string"}, {"type": "integer"}, {"type": "number"}
SCHEMAS = {
    "string": STRING,
    "integer": INTEGER,
    "number": NUMBER,
    "boolean": {"type": "boolean"},
    "null": {"type": "null"},
    "any": {},
    "any object": {"type": "object"},
    "any array": {"type": "array"},
    "several types": {"type": ["string", "null", "integer"]},
    "enum": {"enum": ["a", 1, None, {"k": [True]}, "ž"]},
    "const": {"const": {"verze": "1.0", "š": [1, 2]}},
    "record": record(name=STRING, age=INTEGER),
    "optional keys": {"type": "object", "properties": {"a": STRING, "b": INTEGER}, "required": ["b"]},
    "no keys": record(),
    "nested": record(a=record(b=record(c=record(d=INTEGER)))),
    "array of records": {"type": "array", "items": record(x=NUMBER, y=NUMBER), "minItems": 1, "maxItems": 3},
    "bounded array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {"type": "array", "prefixItems": [STRING, INTEGER], "items": False, "minItems": 2},
    "bounded integer": {"type": "integer", "minimum": -7, "maximum": 123},
    "bounded number": {"type": "number", "minimum": 0.5, "exclusiveMaximum": 99.25},
    "multiple": {"type": "integer", "multipleOf": 15, "minimum": 0, "maximum": 10000},
    "bounded string": {"type": "string", "minLength": 2, "maxLength": 5},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,5}$"},
    "unicode pattern": {"type": "string", "pattern": "^(kůň|žluť|🧑)+$"},
    "date": {"type": "string", "format": "date"},
    "uuid": {"type": "string", "format": "uuid"},
    "any of": {"anyOf": [INTEGER, record(kind={"const": "x"}, at=STRING), {"type": "null"}]},
    "one of, disjoint": {
        "oneOf": [record(kind={"const": "kruh"}, r=INTEGER), record(kind={"const": "čtverec"}, a=INTEGER)]
    },
    "all of": {"allOf": [{"type": "integer", "minimum": 3}, {"type": "integer", "maximum": 40}]},
    "reference": {"$defs": {"č": record(hodnota=INTEGER)}, "type": "array", "items": {"$ref": "#/$defs/č"}},
    "recursive": {
        "$defs": {"tree": record(v=INTEGER, kids={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2})},
        "$ref": "#/$defs/tree",
    },
    "map": {"type": "object", "additionalProperties": {"type": "array", "items": INTEGER}},
    "pattern keys": {"type": "object", "patternProperties": {"^n_": INTEGER}, "additionalProperties": False},
    "odd keys": record(**{'uvozovky"': INTEGER, "zpět\\": INTEGER, "řádek\n": INTEGER, "👩‍💻": INTEGER, "": INTEGER}),
}


def schema_spec(name):
    return GrammarSpec("json_schema", json.dumps(SCHEMAS[name]))


CLOSING = [TOKENIZER.encode(text)[0] for text in ('"', '"}', '"]', "}", "]", ",", "0", "1", "e", "l", "n", ":")]


def walk(matcher, rng, length=60):
    """Random allowed tokens up to an end; beyond `length`, whatever closes what is open."""
    tokens = []
    while True:
        allowed = np.flatnonzero(matcher.allowed())
        assert allowed.size
        ends = [token for token in allowed if token in TOKENIZER.eos_ids]
        if ends and (len(ends) == allowed.size or len(tokens) > length or rng.random() < 0.3):
            assert matcher.accept(rng.choice(ends))
            return tokens
        going = [int(token) for token in allowed if token not in TOKENIZER.eos_ids]
        token = rng.choice(going)
        if len(tokens) > length:
            token = next((token for token in CLOSING if token in going), token)
        assert matcher.accept(token)
        tokens.append(token)
        assert len(tokens) < 2000


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_allowed_ends_in_json_of_the_schema(name):
    start = COMPILER.compile(schema_spec(name))
    for seed in range(12):
        text = TOKENIZER.decode(walk(start.fork(), random.Random(seed)))
        jsonschema.validate(json.loads(text), SCHEMAS[name], format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("record", '{"name": "Žofie \\"Ž\\" 👩‍💻\\n", "age": 7}'),
        ("record", '{\n  "name": "\\u0158",\n  "age": 7\n}'),
        ("record", '{"name":"x","age":-3}'),
        ("any", '[1, {"a": [null, true, -1.5e10]}, "\\ud83d\\ude00"]'),
        ("unicode pattern", '"kůň🧑"'),
        ("odd keys", '{"uvozovky\\"":1,"zpět\\\\":2,"řádek\\n":3,"👩‍💻":4,"":5}'),
    ],
)
def test_what_a_model_would_write_is_allowed(name, text):
    matcher = COMPILER.compile(schema_spec(name))
    for token in TOKENIZER.encode(text):
        assert matcher.allowed()[token]
        assert matcher.accept(token)
    assert matcher.allowed()[EOS].all()


def test_json_object_is_an_object():
    start = COMPILER.compile(GrammarSpec("json_object"))
    assert all(isinstance(json.loads(TOKENIZER.decode(walk(start.fork(), random.Random(i)))), dict) for i in range(10))


def test_white_space_is_bounded():
    matcher = COMPILER.compile(GrammarSpec("json_object"))
    space = TOKENIZER.encode(" ")[0]
    assert matcher.accept(TOKENIZER.encode("{")[0])
    assert matcher.accept(space)
    assert not matcher.allowed()[space]


def texts_of(spec, limit=200):
    """Every text the grammar allows, by enumeration of byte tokens."""
    found, open_ = set(), [(b"", COMPILER.compile(spec))]
    while open_ and len(found) < limit:
        text, matcher = open_.pop()
        allowed = matcher.allowed()
        if allowed[EOS[0]]:
            found.add(text.decode())
        for token in np.flatnonzero(allowed[:256]):
            branch = matcher.fork()
            assert branch.accept(int(token))
            open_.append((text + bytes([token]), branch))
    return found


CHOICES = ["ano", "ne", "možná", 'a"b', "a\\b", "a\nb", "🧑🏽‍🚀", "", "ano!", "/x/", "<|end|>"]


def test_a_choice_is_one_of_its_texts():
    assert texts_of(GrammarSpec("choice", json.dumps(CHOICES))) == set(CHOICES)


@settings(max_examples=25, deadline=None)
@given(st.sets(st.text(st.characters(codec="utf-8"), max_size=5), min_size=1, max_size=4))
def test_any_choice_is_enumerated(choices):
    assert texts_of(GrammarSpec("choice", json.dumps(sorted(choices)))) == choices


def test_a_regex_is_matched_from_start_to_end():
    texts = texts_of(GrammarSpec("regex", "(ab|č){1,2}[0-1]?"))
    assert len(texts) == 18
    assert all(re.fullmatch("(ab|č){1,2}[0-1]?", text) for text in texts)


def test_a_lark_grammar():
    assert texts_of(GrammarSpec("lark", 'start: a | b\na: "x" a?\nb: "y" "z"')) > {"x", "xx", "yz"}


class Reference:
    """The same grammar, walked from the start for every question."""

    def __init__(self, spec):
        self.spec, self.tokens = spec, []

    def matcher(self):
        matcher = COMPILER.compile(self.spec)
        assert all(matcher.accept(token) for token in self.tokens)
        return matcher


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["record", "array of records", "pattern", "any", "map"]),
    st.lists(st.integers(-4, 400), max_size=40),
    st.randoms(use_true_random=False),
)
def test_rollback_and_fork_leave_no_trace(name, moves, rng):
    """A move < 0 rolls back that many, an odd one forks first, others accept an allowed token or try a random one."""
    spec = schema_spec(name)
    matcher, reference = COMPILER.compile(spec), Reference(spec)
    for move in moves:
        if move < 0:
            count = min(-move, len(reference.tokens))
            matcher.rollback(count)
            del reference.tokens[len(reference.tokens) - count :]
        else:
            allowed = np.flatnonzero(matcher.allowed())
            token = int(allowed[move % allowed.size]) if rng.random() < 0.8 else rng.randrange(TOKENIZER.vocab_size)
            went_on = matcher.fork() if move % 2 else matcher
            before = matcher.allowed().copy()
            accepted = went_on.accept(token)
            assert accepted == before[token]
            if went_on is not matcher:
                assert (matcher.allowed() == before).all()
                matcher = went_on
            if accepted:
                reference.tokens.append(token)
        assert (matcher.allowed() == reference.matcher().allowed()).all()


def test_rolling_back_more_than_was_accepted_is_an_error():
    matcher = COMPILER.compile(schema_spec("boolean"))
    matcher.accept(TOKENIZER.encode("true")[0])
    with pytest.raises(ValueError, match="cannot roll back 2"):
        matcher.rollback(2)


def test_an_end_only_where_the_text_may_end_and_after_it_nothing_else():
    matcher = COMPILER.compile(schema_spec("record"))
    text = TOKENIZER.encode('{"name":"a","age":1}')
    for token in text:
        assert not matcher.allowed()[EOS].any()
        assert not matcher.accept(EOS[0])
        assert matcher.accept(token)
    for end in (EOS[0], EOS[1], EOS[1]):
        assert matcher.allowed()[EOS].all()
        assert matcher.accept(end)
        assert np.flatnonzero(matcher.allowed()).tolist() == EOS
        assert not matcher.accept(text[0])
    matcher.rollback(4)
    assert not matcher.allowed()[EOS].any()
    assert matcher.accept(TOKENIZER.encode("}")[0])


def test_control_tokens_are_not_text_unless_they_are_shown():
    spec = GrammarSpec("lark", 'start: "<|python_tag|>" /[a-z]+/')
    marker = TOKENIZER.control_id("<|python_tag|>")
    assert not COMPILER.compile(spec).allowed()[marker]
    shown = GrammarCompiler(TOKENIZER, shown=frozenset({marker})).compile(spec)
    assert shown.allowed()[marker]
    assert shown.accept(marker)
    assert not shown.allowed()[EOS].any()


def test_a_control_token_by_name():
    matcher = COMPILER.compile(GrammarSpec("lark", 'start: <|python_tag|> "x"'))
    assert np.flatnonzero(matcher.allowed()).tolist() == [TOKENIZER.control_id("<|python_tag|>")]


@pytest.mark.parametrize("regex", ["((a{1000}){1000}){1000}", "a{100000}", "(a|b)*a(a|b){25}"])
def test_certain_text_of_any_length_is_followed_step_by_step(regex):
    """The mask of a long certain text is that of its next characters."""
    matcher = COMPILER.compile(GrammarSpec("regex", regex))
    for _ in range(50):
        assert matcher.allowed()[97]
        assert matcher.accept(97)
