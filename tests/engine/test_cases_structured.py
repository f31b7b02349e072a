"""Faults from the field, D: structured output survives drafts that break it, and streams never break a character."""

import re

import pytest

from decodeloop.engine.text.grammar import GrammarCompiler
from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter, WrongDrafter
from decodeloop.types import FinishReason, GrammarSpec
from rig import EOS, VOCAB, Rig, ToyText, plain_text

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]
COMPILER = GrammarCompiler(ToyText())
LIST = r"\[[A-Z]{1,4}(\|[A-Z]{1,4}){0,9}\]"
GRAMMARS = {"list": GrammarSpec("regex", LIST), "nested": GrammarSpec("lark", 'start: "{" (/[a-f]/ | start){1,3} "}"')}


def rig(name, drafters=None, **settings):
    return Rig(drafters, matcher=lambda: COMPILER.compile(GRAMMARS[name]), **settings)


def outcome(heard):
    return heard.token_ids, heard.text, heard.finish_reason


@pytest.mark.parametrize("name", GRAMMARS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_drafts_that_break_the_grammar_change_nothing(name, temperature, depth):
    params = {"temperature": temperature, "max_tokens": 40, "seed": 5}
    plain = rig(name).generate(PROMPT, **params)
    whole = (*PROMPT, *plain.token_ids)
    drafters = {
        "right": OracleDrafter([whole]),
        "right, then past the end": OracleDrafter([(*whole, EOS, 27, 29, 27, 29, 27, 29)]),
        "free of the grammar": OracleDrafter([plain_text(PROMPT, **params)]),
        "wrong": WrongDrafter([whole], VOCAB),
    }
    for kind, drafter in drafters.items():
        heard = rig(name, {"oracle": drafter}, policy="fixed", draft_len=depth).generate(PROMPT, **params)
        assert outcome(heard) == outcome(plain), kind


@pytest.mark.parametrize("seed", range(8))
def test_what_a_grammar_ends_is_whole(seed):
    heard = rig("list").generate(PROMPT, temperature=1.0, max_tokens=64, seed=seed)
    assert heard.finish_reason is FinishReason.STOP
    assert re.fullmatch(LIST, heard.text)


def test_steps_without_drafts_and_drafts_of_every_kind_in_turn():
    """Empty drafts, broken ones, an end too early, drafts past the end: all in one answer."""
    plain = rig("list").generate(PROMPT, temperature=1.0, max_tokens=64, seed=3)
    right = plain.token_ids
    script = [[], [EOS, EOS], right[2:4], [], [61, 61, 61], right[:1], [29, EOS, 27], [], *([[29, EOS]] * 40)]
    heard = rig("list", {"scripted": ScriptedDrafter(script)}, policy="fixed", draft_len=4).generate(
        PROMPT, temperature=1.0, max_tokens=64, seed=3
    )
    assert outcome(heard) == outcome(plain)


def test_thirty_structured_answers_at_once():
    running = rig(
        "nested", {"scripted": ScriptedDrafter([[59, 61, 33]] * 80)}, policy="fixed", draft_len=3, max_sequences=30
    )
    answers = [running.submit(PROMPT[: 2 + i % 5], temperature=1.0, max_tokens=64, seed=i) for i in range(30)]
    running.run()
    for heard in answers:
        depth = 0
        for char in heard.text:
            depth += {"{": 1, "}": -1}.get(char, 0)
            assert depth >= 0
        assert heard.error is None
        assert (heard.finish_reason is FinishReason.STOP) == (depth == 0)
    assert running.no_block_leaked()
