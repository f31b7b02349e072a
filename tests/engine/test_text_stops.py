import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decodeloop.engine.text.stops import StopStrings
from decodeloop.types import RequestRefused

SMALL = st.text("abá", min_size=1, max_size=4)
CUTS = st.lists(st.text("abá", max_size=4), max_size=12)


def reference(text, stops):
    """By definition: of all occurrences the one that ends first, of those ending together the longest."""
    found = [(at + len(s), at, s) for s in stops for at in range(len(text)) if text.startswith(s, at)]
    if not found:
        return text, None
    _, start, stop = min(found)
    return text[:start], stop


def stream(pieces, stops, min_tokens=0):
    scanner, out = StopStrings(stops, min_tokens=min_tokens), []
    for count, piece in enumerate(pieces, 1):
        scan = scanner.push(piece, count)
        out.append(scan.text)
        if scan.hit is not None:
            return out, scan.hit
    return [*out, scanner.finish()], None


@given(CUTS, st.lists(SMALL, min_size=1, max_size=4))
@example(["a", "b", "a"], ["ba", "aba"])
@example(["ab", "ab"], ["bab", "b"])
def test_any_cut_finds_what_the_whole_text_has(pieces, stops):
    out, hit = stream(pieces, stops)
    assert ("".join(out), hit) == reference("".join(pieces), stops)


@given(CUTS, st.lists(SMALL, min_size=1, max_size=4))
def test_exactly_the_possible_beginning_of_a_stop_is_held_back(pieces, stops):
    scanner, seen, shown = StopStrings(stops), "", ""
    for count, piece in enumerate(pieces, 1):
        scan = scanner.push(piece, count)
        seen, shown = seen + piece, shown + scan.text
        if scan.hit is not None:
            return
        longest = max((n for s in stops for n in range(len(s)) if seen.endswith(s[:n])), default=0)
        assert shown == seen[: len(seen) - longest]


@given(CUTS, st.lists(SMALL, min_size=1, max_size=3), st.integers(0, 8))
def test_a_stop_that_ends_before_min_tokens_is_text(pieces, stops, min_tokens):
    out, hit = stream(pieces, stops, min_tokens)
    text, early = "".join(pieces), len("".join(pieces[: max(min_tokens - 1, 0)]))
    ends = [(at + len(s), at, s) for s in stops for at in range(len(text)) if text.startswith(s, at)]
    counted = [found for found in ends if found[0] > early]
    if not counted:
        assert (out and "".join(out), hit) == (text, None)
    else:
        _, start, stop = min(counted)
        assert hit == stop
        assert "".join(out) == text[:start]


def test_a_long_stop_string_costs_no_more_than_the_text():
    scanner = StopStrings(["a" * 20_000 + "b"])
    for count in range(20_000):
        assert scanner.push("a", count).text == ""
    assert scanner.push("a", 20_001).text == "a"
    assert scanner.push("b", 20_002).hit is not None


def test_an_empty_stop_string_is_refused():
    with pytest.raises(RequestRefused, match="empty") as refusal:
        StopStrings(["x", ""])
    assert refusal.value.param == "stop"
