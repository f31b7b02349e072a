"""Structured output from a real model: whatever is drafted, the answer is valid JSON, and the plain one. (Case 15.)"""

import json

import jsonschema
import pytest

from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter
from decodeloop.types import FinishReason, GrammarSpec
from real import TEXT, differences, drafting, request, texts_of

SCHEMA = {
    "type": "object",
    "properties": {
        "id": {"type": "integer", "minimum": 0, "maximum": 99},
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["a", "b", "žluťoučký 🐎"]}},
        "nested": {"type": "object", "properties": {"on": {"type": "boolean"}}, "additionalProperties": False},
    },
    "required": ["id", "name", "tags"],
    "additionalProperties": False,
}
GRAMMAR = GrammarSpec("json_schema", json.dumps(SCHEMA))
PROMPT = TEXT + ' {"id": 7, "name": "cat", "tags": ["a", "b"]} {"id": '


@pytest.fixture(scope="module")
def expected(tiny):
    asked = [
        request(PROMPT[i:], temperature=0.0 if i == 0 else 1.0, max_tokens=300, seed=i, grammar=GRAMMAR)
        for i in range(30)
    ]
    return asked, tiny.plain(*asked)


def test_plain_answers_are_valid(expected):
    for answer in expected[1]:
        assert answer.finish_reasons[0] is FinishReason.STOP
        jsonschema.validate(json.loads(answer.texts[0]), SCHEMA)


@pytest.mark.parametrize(
    ("kind", "depth"), [("ngram", 3), ("first layer", 9), ("breaking", 3), ("breaking", 9), ("past the end", 4)]
)
def test_thirty_at_once_are_the_plain_ones(tiny, expected, kind, depth):
    """Drafts that break the grammar, drafts past its end, an end too early, and steps without any draft between."""
    asked, plain = expected
    if kind in ("ngram", "first layer"):
        drafts = drafting(kind)
    else:
        eos = min(tiny.checkpoint.tokenizer.eos_ids)
        past = [(*text, eos, *range(40, 60)) for text in texts_of(tiny.checkpoint, asked, plain)]
        breaking = ScriptedDrafter([[], [eos], [90, 91], [], [5, eos, 5], [eos, eos]] * 60)
        drafter = breaking if kind == "breaking" else OracleDrafter(past)
        drafts = {"drafters": (), "extra_drafters": {"scripted": drafter}}
    with tiny.engine(draft_len=depth, max_sequences=30, **drafts) as running:
        answers = running.ask(*asked)
        assert differences(answers, plain) == []
        assert sum(row.verify_len for row in running.rows) > 50


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_other_verifiers_keep_to_the_grammar(tiny, near, expected, verifier):
    asked, _ = expected
    with tiny.engine(draft_len=6, verifier=verifier, **drafting("other model", near)) as running:
        for answer in running.ask(*asked[:10]):
            jsonschema.validate(json.loads(answer.texts[0]), SCHEMA)
        assert sum(row.accepted for row in running.rows) > 50
