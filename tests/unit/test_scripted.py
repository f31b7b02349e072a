import pytest

from decodeloop.speculation import Draft, DraftRequest
from decodeloop.speculation.drafters.scripted import OracleDrafter, ScriptedDrafter, WrongDrafter
from decodeloop.speculation.drafters.shadow import shadow_match


def said(drafter, tokens, draft_len=4, sequence_id=1):
    return drafter.propose([DraftRequest(sequence_id, tokens, draft_len, None, None)]).drafts[0].tokens


def test_the_oracle_replays_the_text_that_fits():
    drafter = OracleDrafter([[1, 2, 3, 4, 5], [1, 2, 9, 8, 7]])
    assert said(drafter, [1, 2]) == (3, 4, 5)
    assert said(drafter, [1, 2, 9], 1) == (8,)  # the text turned out to be the other one
    assert said(drafter, [1, 2, 3], sequence_id=2) == (4, 5)
    assert said(drafter, [1, 2, 3, 4, 5]) == ()
    assert said(drafter, [6]) == ()


def test_wrong_is_wrong_everywhere():
    text = list(range(8))
    drafter = WrongDrafter([text], 8)
    for length in range(1, 8):
        draft = said(drafter, text[:length])
        assert len(draft) == min(4, 8 - length)
        assert all(token != right for token, right in zip(draft, text[length:], strict=False))
        assert all(0 <= token < 8 for token in draft)
    with pytest.raises(ValueError, match="offset 16 in a vocabulary of 8 gives the right token"):
        WrongDrafter([text], 8, offset=16)


def test_a_script_is_followed_call_by_call_by_each_sequence():
    drafter = ScriptedDrafter([[1, 2, 3], [], [99]])
    assert [said(drafter, [0], 2) for _ in range(4)] == [(1, 2), (), (99,), ()]
    assert said(drafter, [0], sequence_id=2) == (1, 2, 3)
    drafter.finish(1, [0], "")
    assert said(drafter, [0]) == (1, 2, 3)


@pytest.mark.parametrize(
    ("drafted", "committed", "expected"),
    [((), (1,), 0), ((1, 2, 3), (), 0), ((1, 2, 3), (1, 2, 3, 4), 3), ((1, 2, 3), (1, 9, 3), 1), ((1, 2), (1,), 1)],
)
def test_shadow_match_counts_the_leading_agreement(drafted, committed, expected):
    assert shadow_match(Draft(drafted), committed) == expected
