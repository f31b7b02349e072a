"""The compiled look-ups say what those written in Python say, bit for bit."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.engine import kernels
from decodeloop.engine.kernels.lookup import KEY_BITS, compiled_lookups
from decodeloop.speculation import DraftRequest
from decodeloop.speculation.drafters.automaton import SuffixAutomaton
from decodeloop.speculation.drafters.ngram import NgramDrafter, SuffixIndex
from decodeloop.speculation.drafters.suffix import SuffixDrafter
from decodeloop.speculation.sampling import SamplingState
from decodeloop.testing import drafter_setup
from decodeloop.types import SamplingParams

V = 49_152
LOOKUPS = compiled_lookups()
assert LOOKUPS is not None

tokens = st.one_of(st.integers(0, 2), st.sampled_from([0, 1, 2, 255, 256, V - 1]))
texts = st.lists(st.lists(tokens, max_size=24), min_size=1, max_size=5)


@given(st.lists(tokens, max_size=60), st.integers(1, 4), st.integers(0, 4), st.sampled_from([16, 17, 32]), st.data())
def test_ngrams_agree(text, min_n, more, token_bits, data):
    max_n = min(min_n + more, KEY_BITS // token_bits)
    ours, theirs = (make(max_n, min(min_n, max_n), token_bits) for make in (LOOKUPS.ngrams, SuffixIndex))
    while ours.size < len(text):
        piece = text[ours.size :][: data.draw(st.integers(1, 8))]
        ours.read(piece)
        theirs.read(piece)
        assert (ours.size, ours.match_end, ours.match_len) == (theirs.size, theirs.match_end, theirs.match_len)


def test_ngrams_too_long_for_a_compiled_key_are_looked_up_in_python():
    assert isinstance(LOOKUPS.ngrams(9, 2, 17), SuffixIndex)
    assert isinstance(LOOKUPS.ngrams(8, 2, 16), kernels.load().Ngrams)
    for lengths in ((0, 0, 16), (2, 3, 16), (9, 2, 17)):
        with pytest.raises(ValueError, match="n-grams"):
            kernels.load().Ngrams(*lengths)


@given(texts, st.lists(tokens, max_size=20), st.integers(1, 12), st.integers(1, 12), st.sampled_from([0.0, 0.3]))
def test_automata_agree(texts, query, depth, limit, floor):
    ours, theirs = LOOKUPS.automaton(depth), SuffixAutomaton(depth)
    for text in texts:
        places = []
        for held in (ours, theirs):
            held.begin_text()
            held.read(text[: len(text) // 2])
            held.read(text[len(text) // 2 :])
            own, place = held.own_end(limit), held.nowhere()
            found = [(own.state, own.length, own.size), held.likeliest(own, 8, floor)]
            for token in query:
                held.advance(place, [token], limit)
                found += [(place.state, place.length, place.size), held.likeliest(place, 8, floor)]
            places.append(found)
        assert places[0] == places[1]
        assert (ours.size, len(ours)) == (theirs.size, len(theirs))


def test_an_automaton_that_counts_nothing_is_refused():
    with pytest.raises(ValueError, match="no context"):
        LOOKUPS.automaton(0)


@pytest.mark.parametrize("kind", [NgramDrafter, SuffixDrafter])
@given(texts, st.integers(1, 12))
def test_drafters_draft_the_same(kind, texts, draft_len):
    setup = drafter_setup(V)
    drafters = [kind(each) for each in (setup, replace(setup, lookups=LOOKUPS))]
    for number, text in enumerate(texts):
        for length in range(1, len(text) + 1):
            state = SamplingState(SamplingParams(), text[:1], vocab_size=V, eos_ids=frozenset())
            for token in text[1:length]:
                state.advance(token)
            request = DraftRequest(number, text[:length], draft_len, state, None, f"organization {number % 2}")
            ours, theirs = (drafter.propose([request]) for drafter in drafters)
            assert ours == theirs
        for drafter in drafters:
            drafter.finish(number, text, f"organization {number % 2}")


@pytest.mark.parametrize("kind", [NgramDrafter, SuffixDrafter])
def test_what_they_hold_is_counted(kind):
    drafter = kind(replace(drafter_setup(V), lookups=LOOKUPS))
    state = SamplingState(SamplingParams(), [], vocab_size=V, eos_ids=frozenset())
    held = []
    for count in (10, 1000, 10_000):
        text = [i * i % 9973 for i in range(count)]
        drafter.propose([DraftRequest(1, text, 4, state, None, "acme")])
        held.append(sum(drafter.memory_bytes().values()))
    assert 0 < held[0] < held[1] < held[2]
