import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.speculation import DraftRequest
from decodeloop.speculation.drafters import ngram
from decodeloop.speculation.drafters.ngram import NgramDrafter
from decodeloop.testing import drafter_setup

V = 50


def ask(drafter, tokens, draft_len=6, sequence_id=1):
    return drafter.propose([DraftRequest(sequence_id, tokens, draft_len, None, None)]).drafts[0]


def by_search(tokens, draft_len, max_n, min_n):
    """The definition: longest suffix first, most recent earlier match, copied on into itself."""
    for n in range(min(max_n, len(tokens) - 1), min_n - 1, -1):
        for end in range(len(tokens) - 2, n - 2, -1):
            if tokens[end - n + 1 : end + 1] == tokens[-n:]:
                text = list(tokens)
                for k in range(draft_len):
                    text.append(text[end + 1 + k])
                return tuple(text[len(tokens) :])
    return ()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 9), st.integers(1, 4), st.integers(0, 3))
def test_it_is_the_definition_however_the_text_grows(tokens, draft_len, min_n, more):
    max_n = min_n + more
    drafter = NgramDrafter(drafter_setup(V, {"max_n": max_n, "min_n": min_n}))
    for length in range(1, len(tokens) + 1):
        expected = by_search(tokens[:length], draft_len, max_n, min_n)
        assert ask(drafter, tokens[:length], draft_len).tokens == expected
    assert ask(drafter, tokens, draft_len, sequence_id=2).tokens == expected


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_it_claims_no_longer_match_than_there_is(tokens):
    drafter = NgramDrafter(drafter_setup(V))
    for length in range(1, len(tokens) + 1):
        text = tokens[:length]
        draft = ask(drafter, text)
        if draft.tokens:
            claimed = round(2 / (1 - draft.confidence[0])) - 2
            assert claimed >= 2
            assert any(text[end - claimed : end] == text[-claimed:] for end in range(claimed, length))


def test_periodic_text_goes_on():
    assert ask(NgramDrafter(drafter_setup(V)), [1, 2, 1, 2], 5).tokens == (1, 2, 1, 2, 1)
    assert ask(NgramDrafter(drafter_setup(V)), [7] * 4, 8).tokens == (7,) * 8


def test_a_longer_agreement_is_trusted_more():
    phrase = list(range(10, 30))
    drafter = NgramDrafter(drafter_setup(V))
    first = [ask(drafter, [*phrase, 1, *phrase[:n]], 4).confidence[0] for n in range(2, 15)]
    assert first == sorted(first)
    assert first[0] < first[-1] < 1
    assert first[-1] == pytest.approx(14 / 16)  # 14 tokens in a row agreed


def test_a_token_costs_the_same_anywhere():
    """Operations (lines run), not time, for 200 tokens after 500 and after 20,000."""
    text = [(i * i + i // 7) % V for i in range(20_300)]

    def lines(start):
        drafter, count = NgramDrafter(drafter_setup(V)), 0
        ask(drafter, text[:start])

        def trace(frame, event, arg):
            nonlocal count
            if frame.f_code.co_filename != ngram.__file__:
                return None
            count += event == "line"
            return trace

        texts = [text[:length] for length in range(start + 1, start + 201)]
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for tokens in texts:
                ask(drafter, tokens)
        finally:
            sys.settrace(before)
        return count

    assert 0 < lines(20_000) <= 1.2 * lines(500)


def test_what_is_not_finished_is_bounded():
    drafter = NgramDrafter(drafter_setup(V))
    for sequence_id in range(100):
        ask(drafter, list(range(40)), sequence_id=sequence_id)
    held = drafter.memory_bytes()["index"]
    ask(drafter, list(range(40)), sequence_id=100)
    assert drafter.memory_bytes()["index"] == held > 0
    assert ask(drafter, [1, 2, 3, 1, 2], sequence_id=0).tokens[:1] == (3,)  # an evicted one starts anew


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_n": 1}, "needs 1 <= min_n <= max_n, not min_n 2, max_n 1"),
        ({"min_n": 0}, "needs 1 <= min_n"),
        ({"n": 3}, "no option 'n'; choose from max_n, min_n"),
        ({"max_n": "four"}, "Expected `int`, got `str`"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"drafter ngram: .*{message}"):
        NgramDrafter(drafter_setup(V, options))
