"""The gap to the bound from answers themselves: drafts that were never made, judged by what was said."""

import pytest

from decodeloop.evaluation.bound import MIXED, Judged, best_drafter, bounds, classes_of
from decodeloop.evaluation.counterfactual import Text, histories, right
from decodeloop.evaluation.report import Report, to_html, to_markdown
from decodeloop.evaluation.report_bound import Bound, bound_section
from decodeloop.evaluation.report_validity import Validity
from decodeloop.evaluation.report_words import Answer, Verdict
from decodeloop.policy.cost import CostSurface
from decodeloop.policy.cost_fit import CostSample
from decodeloop.speculation import Draft, DraftBlock, DrafterSetup
from decodeloop.speculation.drafters import drafters
from decodeloop.speculation.sampling import SamplingState
from decodeloop.types import RequestClass, SamplingParams

EDIT, CHAT = RequestClass.CODE_EDIT, RequestClass.GENERAL_CHAT
VOCABULARY, DEPTH = 64, 4
COPIED = list(range(3, 43))


class Always:
    """Proposes the same tokens everywhere, and remembers what it was asked."""

    def __init__(self, *tokens):
        self.tokens, self.asked, self.finished = tokens, [], []

    def propose(self, requests):
        (request,) = requests
        self.asked.append((request.sequence_id, list(request.tokens), request.organization, request.state.output_len))
        return DraftBlock((Draft(self.tokens[: request.draft_len], None, (), None, "always"),))

    def finish(self, sequence_id, tokens, organization):
        self.finished.append((sequence_id, list(tokens), organization))


def text(prompt, answer, kind=EDIT):
    state = SamplingState(SamplingParams(temperature=0.0), prompt, vocab_size=VOCABULARY, eos_ids=frozenset({1}))
    return Text(kind, tuple(prompt), tuple(answer), state)


def open_drafter(name):
    return drafters.load(name)(DrafterSetup(VOCABULARY, 256, 1, DEPTH))


@pytest.fixture(scope="module")
def surface():
    """A step takes 4 ms and half a millisecond a token."""
    return CostSurface([CostSample(n, 0, 1, 4.0 + 0.5 * n) for n in (1, 2, 3, 5, 9, 17, 33)])


def test_drafts_are_judged_by_what_the_answer_says_next():
    drafter = Always(5, 6, 9)
    (found,) = histories(drafter, [text([2, 3], [5, 6, 7, 5])], draft_len=DEPTH)
    assert [(draft.offered, draft.right) for draft in found.drafts] == [(3, 2), (3, 0), (3, 0), (3, 1)]
    assert right([found]) == 3
    assert [len(tokens) for _, tokens, _, _ in drafter.asked] == [2, 3, 4, 5]
    assert [outputs for *_, outputs in drafter.asked] == [0, 1, 2, 3]
    assert drafter.finished == [(0, [2, 3, 5, 6, 7, 5], "0")]


def test_no_text_is_copied_from_another():
    texts = [text([2], COPIED), text([2], COPIED)]
    for name in ("ngram", "suffix"):
        alone = right(histories(open_drafter(name), texts[:1], draft_len=DEPTH))
        assert right(histories(open_drafter(name), texts, draft_len=DEPTH)) == 2 * alone == 0


def test_the_drafter_that_would_have_been_right_is_chosen():
    texts = [text([2], [5, 6, 5, 6, 5, 6])]
    assert best_drafter({"wrong": Always(9), "right": Always(5, 6)}, texts, DEPTH) == "right"


def test_what_can_be_copied_is_won_and_what_cannot_is_not(surface):
    texts = [text([2, *COPIED], COPIED), text([2], [(7 * i * i + 3) % 61 + 3 for i in range(40)], CHAT)]
    assert classes_of(texts) == [EDIT, CHAT]
    judged = Judged(policy="fixed", max_draft_len=DEPTH, draft_len=2, seconds=0.5)
    cells = [(str(EDIT), 1), (str(CHAT), 1), (MIXED, 2)]
    found = {each.name: each.gap for each in bounds(texts, open_drafter("ngram"), surface, judged, cells)}
    copied = found[str(EDIT)]
    prompt_ms, answer = 4.0 + 0.5 * len(COPIED), len(COPIED)
    assert copied.plain == pytest.approx(1e3 * answer / (prompt_ms + 4.5 * (answer - 1)), rel=0.05)
    assert copied.plain < copied.policy < copied.informed * 1.01 <= copied.oracle * 1.02
    assert copied.oracle == pytest.approx(1e3 * answer / (prompt_ms + 6.5 * answer / (1 + DEPTH)), rel=0.1)
    assert found[str(CHAT)].oracle == pytest.approx(found[str(CHAT)].plain, rel=0.05)
    with pytest.raises(ValueError, match="no text of class 'sql'"):
        list(bounds(texts, open_drafter("ngram"), surface, judged, [("sql", 1)]))


def test_the_report_tells_the_gap(surface):
    texts = [text([2, *COPIED], COPIED)]
    judged = Judged(policy="fixed", max_draft_len=DEPTH, draft_len=2, seconds=0.3)
    cells = tuple(bounds(texts, open_drafter("ngram"), surface, judged, [(str(EDIT), 1)]))
    section = bound_section(Bound(policy="<b>", drafter="ngram", answers=1, times_from="made up", cells=cells))
    report = Report(
        title="t",
        subtitle="s",
        verdict=Verdict(answer=Answer.MEASURED, headline="h"),
        validity=Validity((), ()),
        key_figures=(),
        sections=(section,),
    )
    page, words = to_html(report), to_markdown(report)
    assert "<b>" not in page
    for said in ("The gap to the bound", "code_edit", f"{cells[0].gap.oracle:.1f}", "Step times: made up"):
        assert said in page
        assert said in words.replace("\\", "")
