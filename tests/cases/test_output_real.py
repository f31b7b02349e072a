"""What is said doesn't depend on what was drafted, by whom, how far, or in which company.

Cases 1 to 6, 8 and 10 to 14. A tiny real model in its batch-invariant mode: answers are compared to the bit.
"""

import pytest

from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter, WrongDrafter
from decodeloop.types import FinishReason
from real import PENALTIES, RUNNERS, TEXT, Tiny, differences, drafting, every_kind, request, texts_of
from tiny import tiny_hf

PAID = ("first layer", "other model")


@pytest.fixture(scope="module")
def expected(tiny):
    """One request of each kind, and what each must be answered."""
    asked = every_kind(tiny)
    return asked, tiny.plain(*asked)


@pytest.mark.parametrize("depth", [1, 4, 12])
@pytest.mark.parametrize("kind", ["ngram", "suffix", *PAID])
def test_drafts_change_nothing(tiny, near, expected, kind, depth):
    asked, plain = expected
    with tiny.engine(draft_len=depth, **drafting(kind, near)) as running:
        answers = running.ask(*asked)
        assert differences(answers, plain) == []
        accepted = sum(row.accepted for row in running.rows)
        assert accepted > 10, "nothing was accepted, so nothing was tested"
        assert any(row.accepted < row.verify_len for row in running.rows)


@pytest.mark.parametrize("depth", [1, 4, 8])
@pytest.mark.parametrize("kind", ["oracle", "wrong", "scripted"])
def test_drafts_right_and_wrong_everywhere_change_nothing(tiny, expected, kind, depth):
    asked, plain = expected
    texts = texts_of(tiny.checkpoint, asked, plain)
    drafter = {
        "oracle": OracleDrafter(texts),
        "wrong": WrongDrafter(texts, 320),
        "scripted": ScriptedDrafter([[], [2], [400, 5], [-1], [5, 2, 2], [], [2, 2, 2, 2]] * 9),
    }[kind]
    with tiny.engine(draft_len=depth, drafters=(), extra_drafters={kind: drafter}) as running:
        answers = running.ask(*asked, at_once=1 if kind == "oracle" else 64)
        assert differences(answers, plain) == []
        rate = sum(row.accepted for row in running.rows) / sum(row.verify_len for row in running.rows)
        assert (rate == 0.0) if kind == "wrong" else (rate > 0.9) if kind == "oracle" else (rate < 0.5)


@pytest.mark.parametrize("verifier", ["rejection", "block"])
@pytest.mark.parametrize("kind", ["ngram", *PAID])
def test_other_verifiers_agree_where_chance_has_no_say(tiny, near, expected, verifier, kind):
    asked, plain = expected
    certain = [i for i, each in enumerate(asked) if each.params.temperature == 0.0]
    with tiny.engine(verifier=verifier, **drafting(kind, near)) as running:
        answers = running.ask(*(asked[i] for i in certain))
        assert differences(answers, [plain[i] for i in certain]) == []


@pytest.mark.parametrize(("verifier", "draws"), [("coupled", 300), ("rejection", 120), ("block", 120)])
def test_three_near_equal_tokens_all_show(tiny, near, verifier, draws):
    """The drafts are sampled from another model, and the q's are that model's."""
    three = {"allowed_token_ids": (50, 51, 52), "temperature": 2.0, "max_tokens": 3, "top_k": 3}
    with tiny.engine(verifier=verifier, max_sequences=64, **drafting("other model", near)) as running:
        answers = running.ask(*(request(n=draws // 3, seed=seed, **three) for seed in range(3)))
        texts = [tuple(ids[:2]) for answer in answers for ids in answer.token_ids.values()]
        assert len(texts) == draws
        for place in range(2):
            shares = [sum(text[place] == token for text in texts) / draws for token in (50, 51, 52)]
            assert min(shares) > 0.05, shares
        assert len(set(texts)) == 9
        assert 0 < sum(row.accepted for row in running.rows) < sum(row.verify_len for row in running.rows)


def test_a_seed_belongs_to_its_request(tiny, near):
    mine = request(temperature=1.0, seed=77)
    alone = tiny.plain(mine)[0]
    others = [request(TEXT[: 5 + 3 * i], temperature=1.0, seed=i) for i in range(4)]
    with tiny.engine(**drafting("other model", near)) as running:
        twice = running.ask(mine, *others, mine)
    assert differences([twice[0], twice[-1]], [alone, alone]) == []
    same_seed = tiny.plain(request(temperature=1.0, seed=77, n=3), request(TEXT + ".", temperature=1.0, seed=77))
    texts = [tuple(ids) for answer in same_seed for ids in answer.token_ids.values()]
    assert tuple(alone.token_ids[0]) == texts[0]
    assert len(set(texts)) == 4, "choices and prompts under one seed are independent"


def test_temperature_just_above_zero_is_its_limit(tiny, near):
    cold = tiny.plain(request())[0]
    for temperature in (1e-4, 1e-300):
        with tiny.engine(**drafting("other model", near)) as running:
            assert running.one(temperature=temperature).token_ids == cold.token_ids


@pytest.mark.parametrize("kind", ["ngram", "suffix", "first layer"])
def test_the_next_turn_continues_from_what_was_said(tiny, kind):
    """Tokens that were verified behind a stop are in no cache: turns on a warm cache are those of a cold one."""
    whole = tiny.plain(request(max_tokens=40))[0].token_ids[0]
    with tiny.engine(draft_len=12, block_tokens=16, **drafting(kind)) as running:
        said = running.one(max_tokens=40, stop_token_ids=(whole[20],)).token_ids[0]
        turn = tuple(tiny.checkpoint.tokenizer.encode(TEXT)) + tuple(said) + (80, 81, 82)
        warm = running.one(turn)
        assert warm.usage.cached > 0
    assert differences([warm], tiny.plain(request(turn))) == []


def test_usage_is_what_was_delivered(tiny):
    """No sub-count exceeds its total, wherever the end falls."""
    text = tiny.plain(request(max_tokens=30, ignore_eos=True))[0].texts[0]
    ends = [text[i : i + 2] for i in range(0, len(text) - 2, 3)]
    with tiny.engine(draft_len=8, **drafting("first layer")) as running:
        for answer in running.ask(*(request(max_tokens=30, stop=(end,), ignore_eos=True) for end in ends)):
            usage = answer.usage
            assert usage.completion == len(answer.token_ids[0]) <= 30
            assert usage.accepted <= usage.verified <= usage.drafted
            assert usage.cached < usage.prompt
            assert answer.finish_reasons[0] is FinishReason.STOP
            assert answer.texts[0] + answer.request.params.stop[0] == text[: len(answer.texts[0]) + 2]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("family", ["gemma3", "qwen3"])
def test_other_families_too(tmp_path, family, runner):
    """Sliding windows forget what left them, also after a rejection."""
    model = Tiny.open(tiny_hf(family, tmp_path / family, vocab_size=320), **RUNNERS[runner])
    asked = [request(max_tokens=40), request(max_tokens=40, temperature=1.0), request((5, 6, 7) * 20, **PENALTIES)]
    plain = model.plain(*asked)
    for kind in ("ngram", "first layer"):
        with model.engine(draft_len=6, **drafting(kind)) as running:
            assert differences(running.ask(*asked), plain) == []
            assert differences(running.ask(*asked), plain) == []
            assert sum(row.accepted for row in running.rows) > 0


def test_a_long_prompt_and_a_long_answer_in_any_company(tiny):
    """4k tokens of prompt and 512 of answer: alone, among 7 others, on a cold and a warm cache, in chunks."""
    prompt = tuple(5 + (i * i // 7 + i % 11) % 300 for i in range(4096))
    asked = request(prompt, max_tokens=512, temperature=1.0, ignore_eos=True, seed=9)
    room = {"max_context": 5120, "kv_memory_mb": 24, "max_step_tokens": 512}
    with tiny.engine(policy="off", drafters=(), prefix_caching=False, prefill_chunk=512, **room) as running:
        (alone,) = running.ask(asked)
    assert alone.usage.completion == 512
    others = [request(prompt[:length], temperature=1.0, seed=length) for length in (1, 2, 15, 16, 17, 200, 1000)]
    with tiny.engine(draft_len=6, prefill_chunk=96, drafters=("suffix", "ngram"), **room) as running:
        first, *_ = running.ask(asked, *others)
        warm = running.one(prompt, max_tokens=100, temperature=1.0, ignore_eos=True, seed=9)
        assert warm.usage.cached == 4080
        assert sum(row.verify_len for row in running.rows) > 100
    assert differences([first], [alone]) == []
    assert warm.token_ids[0] == alone.token_ids[0][:100]
