"""The same on weights of four bits, as the default model has them. (Cases 1 to 3, 8, 10 to 15, 18.)"""

import json

import pytest

from decodeloop.types import GrammarSpec
from real import TEXT, Tiny, differences, drafting, every_kind, request


@pytest.fixture(scope="module")
def native(tiny_path):
    return Tiny.open(tiny_path, runner="native", dtype="int4")


@pytest.fixture(scope="module")
def expected(native):
    asked = every_kind(native)
    return asked, native.plain(*asked)


@pytest.mark.parametrize(("kind", "depth"), [("ngram", 4), ("suffix", 1), ("first layer", 3), ("first layer", 12)])
def test_drafts_change_nothing(native, expected, kind, depth):
    """Cold and in company, then warm, prompts in chunks."""
    asked, plain = expected
    with native.engine(draft_len=depth, prefill_chunk=7, **drafting(kind)) as running:
        assert differences(running.ask(*asked), plain) == []
        assert differences(running.ask(*asked), plain) == []
        assert sum(row.accepted for row in running.rows) > 10


def test_preempted_requests_say_the_same(native):
    asked = [request(TEXT * 5, seed=i, temperature=1.0, max_tokens=40, ignore_eos=True) for i in range(6)]
    with native.engine(draft_len=6, blocks=20, max_context=160, **drafting("first layer")) as running:
        answers = running.ask(*asked)
        assert running.engine.engine.scheduler.preemptions > 0
    assert differences(answers, native.plain(*asked)) == []


def test_structured_answers_are_the_plain_ones(native):
    schema = {"type": "array", "minItems": 2, "maxItems": 4, "items": {"enum": ["kůň", "🐎", 7]}}
    grammar = GrammarSpec("json_schema", json.dumps(schema))
    asked = [request(temperature=1.0, seed=i, max_tokens=120, grammar=grammar) for i in range(10)]
    with native.engine(draft_len=5, **drafting("first layer")) as running:
        answers = running.ask(*asked)
    assert differences(answers, native.plain(*asked)) == []
    assert all(2 <= len(json.loads(answer.texts[0])) <= 4 for answer in answers)
