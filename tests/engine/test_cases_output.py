"""Faults from the field, A to C: what is said never depends on what was drafted. Toy target, hand-stepped."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation import DrafterSetup
from decodeloop.speculation.drafters.ngram import NgramDrafter
from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter, WrongDrafter
from decodeloop.types import FinishReason
from rig import EOS, VOCAB, Rig, plain_text

PROMPT = [1, 2, 3, 4, 5, 1, 2, 3]


def ngram():
    return {"ngram": NgramDrafter(DrafterSetup(VOCAB, 4096, 8, 12, options={"min_n": 1}))}


def oracle(prompt=PROMPT, toy=None, **params):
    return {"oracle": OracleDrafter([plain_text(prompt, toy=toy, **params)])}


def wrong(prompt=PROMPT, toy=None, **params):
    return {"wrong": WrongDrafter([plain_text(prompt, toy=toy, **params)], VOCAB)}


def outcomes(prompt=PROMPT, *, depths=(0, 1, 2, 4, 8, 12), toy=None, **params):
    """What a reader gets: plain, then under every kind of drafter and depth."""
    for depth in depths:
        for drafters in (ngram(), oracle(prompt, toy, **params), wrong(prompt, toy, **params)):
            rig = Rig(drafters, policy="fixed", draft_len=depth, toy=toy)
            heard = rig.generate(prompt, **params)
            assert rig.no_block_leaked()
            yield heard


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("toy", [{}, {"order": 2, "sharpness": 1.0}, {"script": {7: (7,) * 48}}])
def test_drafts_change_nothing(temperature, toy):
    plain = Rig(toy=toy).generate(PROMPT, max_tokens=60, temperature=temperature)
    for heard in outcomes(toy=toy, max_tokens=60, temperature=temperature):
        assert (heard.token_ids, heard.text, heard.finish_reason) == (
            plain.token_ids,
            plain.text,
            plain.finish_reason,
        )


def test_one_word_repeated_is_drafted_and_unchanged():
    prompt, toy = [7] * 4, {"script": {7: (7,) * 48}}
    rig = Rig(ngram(), policy="fixed", draft_len=8, toy=toy)
    heard = rig.generate(prompt, max_tokens=48)
    assert heard.token_ids == Rig(toy=toy).generate(prompt, max_tokens=48).token_ids
    assert len(rig.records) < 20


def test_equal_logits_go_to_the_lowest_id():
    toy = {"equal_rows": (tuple(range(VOCAB)),)}
    for heard in outcomes(toy=toy, ignore_eos=True, max_tokens=9):
        assert heard.token_ids == [0] * 9


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**53 - 1), st.sampled_from([0.0, 1.0]), st.integers(1, 40), st.sampled_from([16, 3, 1]))
def test_company_chunks_and_cache_change_nothing(seed, temperature, length, chunk):
    """A request alone, among 7 others, with a cold and a warm prefix cache, its prompt in chunks of any size."""
    prompt = np.random.default_rng(seed).integers(1, VOCAB, length).tolist()
    alone = Rig().generate(prompt, seed=seed, temperature=temperature)
    rig = Rig(ngram(), policy="fixed", draft_len=4, prefill_chunk=chunk, max_step_tokens=max(chunk + 8, 40))
    first = rig.submit(prompt, seed=seed, temperature=temperature)
    others = [rig.submit([*prompt[:i], i], seed=i, temperature=1.0) for i in range(1, 8)]
    rig.run()
    warm = rig.generate(prompt, seed=seed, temperature=temperature)
    assert alone.token_ids == first.token_ids == warm.token_ids
    assert warm.usage.cached == (length - 1) // 16 * 16
    assert all(other.ended for other in others)
    assert rig.no_block_leaked()


def test_a_seed_belongs_to_its_request():
    rig = Rig()
    same = [rig.submit(PROMPT, seed=5, temperature=1.0) for _ in range(2)]
    others = [rig.submit(PROMPT, seed=seed, temperature=1.0) for seed in range(10, 14)]
    rig.run()
    assert same[0].token_ids == same[1].token_ids
    assert len({tuple(heard.token_ids) for heard in (same[0], *others)}) == 5


def test_choices_are_independent_and_share_the_prompt():
    rig = Rig(ngram(), policy="fixed")
    prompt = list(range(1, 40))
    heard = rig.generate(prompt, n=4, temperature=1.0, max_tokens=12, ignore_eos=True)
    texts = {i: tuple(t for c in heard.chunks if c.index == i for t in c.token_ids) for i in range(4)}
    assert len(set(texts.values())) == 4
    assert heard.usage.prompt == 39
    assert heard.usage.completion == 48
    siblings = [row for row in rig.rows if row.prefill_tokens and row.context_tokens == 39]
    assert [row.prefill_tokens for row in siblings] == [39, 7, 7, 7]  # the others found 32 in the cache
    assert rig.no_block_leaked()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_see_each_committed_token_once(temperature):
    shaped = {"repetition_penalty": 1.3, "presence_penalty": 1.0, "frequency_penalty": 0.8, "temperature": temperature}
    toy = {"order": 1, "sharpness": 1.0}
    plain = Rig(toy=toy).generate(PROMPT, max_tokens=40, **shaped)
    for heard in outcomes(depths=(2, 8), toy=toy, max_tokens=40, **shaped):
        assert heard.token_ids == plain.token_ids


def test_filters_act_on_every_emitted_position():
    allowed = (3, 9, 20, 33)
    for heard in outcomes(temperature=1.0, allowed_token_ids=allowed, max_tokens=30, depths=(4,)):
        assert set(heard.token_ids) <= set(allowed)
        assert len(heard.token_ids) == 30
    for heard in outcomes(temperature=1.0, top_k=1, max_tokens=30, depths=(4,)):
        assert heard.token_ids == Rig().generate(PROMPT, max_tokens=30).token_ids


def test_a_logit_hook_runs_for_every_verified_position():
    seen = []

    def only_after(tokens, logits):
        seen.append(tuple(tokens))
        return np.where(np.arange(VOCAB) == (tokens[-1] % 50) + 1, 0.0, -np.inf)

    plain = Rig().generate(PROMPT, max_tokens=10, logit_hook=only_after)
    texts = {tuple(text) for text in seen}
    rig = Rig({"oracle": OracleDrafter([(*PROMPT, *plain.token_ids)])}, policy="fixed", draft_len=4)
    assert rig.generate(PROMPT, max_tokens=10, logit_hook=only_after).token_ids == plain.token_ids
    assert {tuple(text) for text in seen} == texts
    assert len(rig.records) < 5


@pytest.mark.parametrize("least", range(1, 7))
def test_min_tokens_counts_tokens(least):
    """EOS is what the target wants at once: it comes exactly when it may, wherever that falls in a block."""
    toy = {"script": {3: (EOS,) * 20, EOS: (EOS,)}}
    script = [[EOS] * 4] * 20
    for depth in range(6):
        rig = Rig({"scripted": ScriptedDrafter(script)}, policy="fixed", draft_len=depth, toy=toy)
        heard = rig.generate([3], min_tokens=least, max_tokens=20)
        plain = Rig(toy=toy).generate([3], min_tokens=least, max_tokens=20)
        assert heard.token_ids == plain.token_ids
        assert EOS not in heard.token_ids[:least]


def eos_trick(place, **params):
    """A stop id that plain output really has at `place`, and what must come out."""
    text = Rig().generate(PROMPT, max_tokens=30, **params).token_ids
    stop = text[place]
    return stop, text[: text.index(stop) + 1]


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_output_ends_at_the_first_end_wherever_it_falls(place, temperature):
    stop, expected = eos_trick(place, temperature=temperature)
    for heard in outcomes(depths=(1, 3, 7), max_tokens=30, stop_token_ids=(stop,), temperature=temperature):
        assert heard.token_ids == expected
        assert heard.finish_reason is FinishReason.STOP
        assert heard.usage.completion == len(expected)


def test_what_follows_the_end_is_in_no_cache():
    """The next turn of a conversation continues from what was said, not from what was discarded."""
    stop, expected = eos_trick(6)
    rig = Rig(oracle(max_tokens=30), policy="fixed", draft_len=12, block_tokens=4)
    said = rig.generate(PROMPT, max_tokens=30, stop_token_ids=(stop,)).token_ids
    assert said == expected
    turn = [*PROMPT, *said, 11, 12]
    assert rig.generate(turn).token_ids == Rig().generate(turn).token_ids


def test_a_rejected_eos_has_no_effect():
    script = [[EOS], [9, EOS], [EOS, EOS]] * 10
    rig = Rig({"scripted": ScriptedDrafter(script)}, policy="fixed", draft_len=4, toy={"order": 1})
    params = {"banned_token_ids": (EOS,), "max_tokens": 20}
    assert rig.generate(PROMPT, **params).token_ids == Rig(toy={"order": 1}).generate(PROMPT, **params).token_ids


@pytest.mark.parametrize("most", range(1, 10))
def test_max_tokens_is_exact(most):
    for heard in outcomes(depths=(0, 4), max_tokens=most):
        assert len(heard.token_ids) == heard.usage.completion == most
        assert heard.finish_reason is FinishReason.LENGTH
        assert heard.usage.accepted <= heard.usage.verified <= heard.usage.drafted


def test_a_stop_inside_the_cap_wins_over_length():
    stop, expected = eos_trick(4)
    for heard in outcomes(depths=(0, 4, 8), max_tokens=len(expected), stop_token_ids=(stop,)):
        assert heard.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("start", range(8))
@pytest.mark.parametrize("length", [1, 2, 5])
def test_stop_strings_anywhere_in_a_block_or_across_two(start, length):
    whole = Rig().generate(PROMPT, max_tokens=30).text
    stop = whole[start : start + length]
    expected = whole[: whole.index(stop)]
    for heard in outcomes(depths=(0, 3, 8), max_tokens=30, stop=(stop,), logprobs=1):
        assert heard.text == expected
        assert len(heard.token_ids) == len(heard.logprobs) == len(expected) == heard.usage.completion
        assert heard.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_the_targets_one_a_token(temperature):
    params = {"max_tokens": 20, "logprobs": 3, "temperature": temperature}
    plain = Rig().generate(PROMPT, **params).logprobs
    assert len(plain) == 20
    for heard in outcomes(depths=(1, 6), **params):
        assert [entry.token_id for entry in heard.logprobs] == heard.token_ids
        for mine, theirs in zip(heard.logprobs, plain, strict=True):
            assert mine.logprob == pytest.approx(theirs.logprob, abs=1e-4)
            assert [top.token_id for top in mine.top] == [top.token_id for top in theirs.top]


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_other_verifiers_agree_where_chance_has_no_say(verifier):
    for depth in (0, 3, 8):
        for drafters in (ngram(), oracle(), wrong()):
            rig = Rig(drafters, policy="fixed", draft_len=depth, verifier=verifier)
            assert rig.generate(PROMPT).token_ids == Rig().generate(PROMPT).token_ids
            assert rig.no_block_leaked()
