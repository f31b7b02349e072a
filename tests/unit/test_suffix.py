import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.speculation import DraftRequest
from decodeloop.speculation.drafters import automaton, suffix
from decodeloop.speculation.drafters.automaton import Context, SuffixAutomaton
from decodeloop.speculation.drafters.library import Library
from decodeloop.speculation.drafters.suffix import SuffixDrafter
from decodeloop.speculation.sampling import SamplingState
from decodeloop.testing import drafter_setup
from decodeloop.types import SamplingParams

V = 50
texts_of_few_tokens = st.lists(st.lists(st.integers(0, 2), max_size=20), min_size=1, max_size=4)


def request(tokens, draft_len=8, sequence_id=1, organization="acme", prompt_len=1):
    state = SamplingState(SamplingParams(), tokens[:prompt_len], vocab_size=V, eos_ids=frozenset())
    for token in tokens[prompt_len:]:
        state.advance(token)
    return DraftRequest(sequence_id, tokens, draft_len, state, None, organization)


def ask(drafter, tokens, *args, **more):
    return drafter.propose([request(tokens, *args, **more)]).drafts[0]


class Counted:
    """Every context of some texts counted one by one: what the automaton must agree with."""

    def __init__(self, texts, depth):
        self.count, self.followed, self.after, self.latest = Counter(), Counter(), {}, {}
        clock = 0
        for text in texts:
            for i, token in enumerate(text):
                clock += 1
                for n in range(depth):
                    if n <= i:
                        context = tuple(text[i - n : i])
                        self.followed[context] += 1
                        self.after.setdefault(context, Counter())[token] += 1
                        self.latest[context, token] = clock
                        self.count[(*context, token)] += 1

    def best(self, context):
        after = self.after[context]
        return max(after, key=lambda token: (after[token], self.latest[context, token]))

    def holds(self, context):
        return context == () or context in self.count


@given(texts_of_few_tokens, st.integers(1, 8), st.data())
@settings(max_examples=150)
def test_the_automaton_counts_every_context(texts, depth, data):
    held = SuffixAutomaton(depth)
    for text in texts:
        held.begin_text()
        cut = data.draw(st.integers(0, len(text)))
        held.read(text[:cut])
        held.read(text[cut:])
    truth = Counted(texts, depth)
    for context in [c for c in truth.followed if 0 < len(c) < depth]:
        place = Context()
        held.advance(place, context, depth)
        assert place.length == len(context)
        tokens, scores = held.likeliest(place, 1, 0.0)
        best = truth.best(context)
        assert tokens == [best]
        assert scores == [truth.count[(*context, best)] / truth.followed[context]]
    assert len(held) <= 2 * held.size + 1


@given(texts_of_few_tokens, st.lists(st.integers(0, 2), max_size=20), st.integers(1, 6))
def test_a_place_is_the_longest_suffix_that_the_texts_hold(texts, query, limit):
    held = SuffixAutomaton(limit + 1)
    for text in texts:
        held.begin_text()
        held.read(text)
    truth, place = Counted(texts, limit + 1), Context()
    for i in range(1, len(query) + 1):
        held.advance(place, query[i - 1 : i], limit)
        lengths = [n for n in range(min(i, limit) + 1) if truth.holds(tuple(query[i - n : i]))]
        assert place.length == max(lengths)


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 6))
def test_the_own_end_is_the_longest_suffix_that_came_before(text, limit):
    held = SuffixAutomaton(limit + 1)
    held.read(text)
    earlier = Counted([text[:-1]], limit)
    lengths = [n for n in range(min(len(text), limit) + 1) if earlier.holds(tuple(text[len(text) - n :]))]
    assert held.own_end(limit).length == max(lengths)


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 4), st.integers(1, 5))
def test_a_run_multiplies_the_shares_along_the_commonest_way(text, max_match, draft_len):
    depth = max_match + draft_len
    held = SuffixAutomaton(depth)
    held.read(text)
    truth = Counted([text], depth)
    place = held.own_end(max_match)
    context, score, expected = tuple(text[len(text) - place.length :]), 1.0, []
    while context and len(expected) < draft_len:
        while context and not truth.followed[context]:
            context = context[1:]
        if context:
            token = truth.best(context)
            score *= truth.count[(*context, token)] / truth.followed[context]
            expected.append((token, score))
            context = (*context, token)
    tokens, scores = held.likeliest(place, draft_len, 0.0)
    assert tokens == [token for token, _ in expected]
    assert scores == pytest.approx([score for _, score in expected])
    floored, _ = held.likeliest(place, draft_len, 0.5)
    assert floored == [token for token, score in expected if score >= 0.5]


def test_the_commonest_continuation_wins_and_the_latest_among_equals():
    drafter = SuffixDrafter(drafter_setup(V))
    assert ask(drafter, [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 2], 1).tokens == (3,)
    assert ask(drafter, [1, 2, 3, 9, 1, 2, 4, 8, 1, 2], 1, sequence_id=2).tokens == (4,)


def test_the_match_bounds_the_draft():
    text = list(range(20))
    for matched in range(1, 10):
        drafter = SuffixDrafter(drafter_setup(V, {"alpha": 1.0, "offset": -1.0, "min_match": 1}))
        assert len(ask(drafter, [*text, 30, *text[:matched]]).tokens) == min(8, matched - 1)
    drafter = SuffixDrafter(drafter_setup(V, {"min_match": 3}))
    assert ask(drafter, [*text, 30, *text[:2]]).tokens == ()


def test_periodic_text_goes_on():
    drafter = SuffixDrafter(drafter_setup(V))
    assert ask(drafter, [1, 2, 3] * 4).tokens == (1, 2, 3, 1, 2, 3, 1, 2)


def test_a_finished_output_serves_its_organization_and_no_other():
    drafter = SuffixDrafter(drafter_setup(V))
    output = list(range(10, 30))
    ask(drafter, [1, *output], sequence_id=1)
    assert ask(drafter, [2, 10, 11], sequence_id=2).tokens == ()  # not before it is finished
    drafter.finish(1, [1, *output], "acme")
    assert ask(drafter, [2, 10, 11, 12], sequence_id=2).tokens == tuple(range(13, 19))
    assert ask(drafter, [2, 10, 11, 12], sequence_id=3, organization="other").tokens == ()


def test_prompts_are_not_learned():
    drafter = SuffixDrafter(drafter_setup(V))
    prompt, output = [1, 2, 3, 4, 5, 6], [20, 21, 22, 23]
    ask(drafter, [*prompt, *output], prompt_len=len(prompt))
    drafter.finish(1, [*prompt, *output], "acme")
    assert ask(drafter, [9, 2, 3], sequence_id=2).tokens == ()
    assert ask(drafter, [9, 20, 21], sequence_id=3).tokens == (22, 23)


@given(texts_of_few_tokens, st.lists(st.integers(0, 2), min_size=1, max_size=30), st.data())
@settings(max_examples=60)
def test_a_sequence_that_grew_while_others_finished_knows_what_a_new_one_knows(outputs, tokens, data):
    drafter = SuffixDrafter(drafter_setup(V, {"max_match": 4, "library_tokens": 40}))
    for length in range(1, len(tokens) + 1):
        if outputs and data.draw(st.booleans()):
            finished = [0, *outputs.pop()]
            ask(drafter, finished, sequence_id=100)
            drafter.finish(100, finished, "acme")
        grown = ask(drafter, tokens[:length])
        assert grown == ask(drafter, tokens[:length], sequence_id=1000 + length)
        drafter.finish(1000 + length, tokens[:1], "acme")


def test_the_library_is_bounded_and_forgets_the_least_recently_used():
    library = Library(100, lambda: SuffixAutomaton(8))
    for organization in ("a", "b", "c"):
        library.add(organization, list(range(30)))
    library.automata("a")
    library.add("d", list(range(30)))
    assert library.size <= 100
    assert not library.automata("b")
    assert library.automata("a")
    for _ in range(50):
        library.add("a", list(range(30)))
        assert library.size <= 100
    assert 1 <= len(library.automata("a")) <= 2
    library.add("a", list(range(1000)))
    assert library.size <= 100
    place = Context()
    library.automata("a")[0].advance(place, [998, 999], 8)
    assert place.length == 2  # the end of what was too long to keep whole


def test_no_library_is_kept_where_none_is_wanted():
    drafter = SuffixDrafter(drafter_setup(V, {"library_tokens": 0}))
    ask(drafter, [1, 2, 3, 4])
    drafter.finish(1, [1, 2, 3, 4], "acme")
    assert ask(drafter, [7, 2, 3], sequence_id=2).tokens == ()


def text_of(length):
    """A phrase book walked through irregularly: repeats at many lengths, as text has them."""
    phrases = [[(7 * p + i * i) % V for i in range(3 + p % 9)] for p in range(40)]
    text, p = [], 1
    while len(text) < length:
        p = (p * 73 + 11 + len(text) // 97) % 1009
        text += phrases[p % 40]
    return text[:length]


@pytest.mark.parametrize("make", [text_of, lambda length: [5] * length, lambda length: [i % 7 for i in range(length)]])
def test_a_token_costs_the_same_anywhere(make):
    """Operations (lines run), not time, for 200 tokens after 2,000 and after 20,000."""
    text = make(20_200)

    def lines(start):
        drafter, count = SuffixDrafter(drafter_setup(V)), 0
        drafter.propose([request(text[:start])])
        requests = [request(text[:length], prompt_len=length) for length in range(start + 1, start + 201)]

        def trace(frame, event, arg):
            nonlocal count
            if frame.f_code.co_filename not in (automaton.__file__, suffix.__file__):
                return None
            count += event == "line"
            return trace

        before = sys.gettrace()
        sys.settrace(trace)
        try:
            for one in requests:
                drafter.propose([one])
        finally:
            sys.settrace(before)
        return count

    assert 0 < lines(20_000) <= 1.3 * lines(2_000)


def test_memory_is_bounded_by_a_small_multiple_of_the_text():
    drafter = SuffixDrafter(drafter_setup(V))
    ask(drafter, text_of(5_000))
    assert 5_000 * 8 < drafter.memory_bytes()["index"] < 5_000 * 600
    drafter.finish(1, text_of(1), "acme")
    assert drafter.memory_bytes()["index"] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_match": 0}, "needs 1 <= min_match <= max_match, not min_match 0, max_match 32"),
        ({"alpha": -1}, "alpha and library_tokens cannot be negative"),
        ({"depth": 3}, "no option 'depth'; choose from alpha, offset, max_match"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"drafter suffix: .*{message}"):
        SuffixDrafter(drafter_setup(V, options))
