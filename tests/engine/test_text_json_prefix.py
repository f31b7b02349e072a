import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from decodeloop.engine.text.json_prefix import Event, JsonPrefix


def reads(text):
    """(how much of `text` was possible, whether it was then complete)."""
    reader = JsonPrefix()
    for at, char in enumerate(text):
        if reader.push(char) is Event.IMPOSSIBLE:
            return at, False
    return len(text), reader.complete


def is_json(text):
    try:
        json.loads(text, parse_constant=lambda name: 1 / 0)
    except (ValueError, ZeroDivisionError):
        return False
    return True


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_every_prefix_of_json_is_possible_and_all_of_it_complete(value, ascii_only, indent):
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert reads(text) == (len(text), True)
    assert reads(f" \n{text}\t") == (len(text) + 3, True)


@given(st.text('{}[]",:\\ue01-+.tfnrlas \n\x01', max_size=12))
@example("-")
@example("01")
@example("1.")
@example("1e+")
@example('"\\u00"')
@example("[1,]")
@example('{"a":1,}')
@example("tru ")
def test_complete_means_that_json_reads_it(text):
    possible, complete = reads(text)
    assert complete == (is_json(text) and possible == len(text))
    if possible < len(text):
        assert not is_json(text)


@given(VALUES, st.data())
def test_what_is_called_impossible_has_no_continuation(value, data):
    """One wrong character: if the reader goes on, some text completes it; if it stops, json fails there too."""
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    wrong = text[:at] + data.draw(st.sampled_from(list('{}[]",:\\x0-.te '))) + text[at:]
    possible, complete = reads(wrong)
    assert complete == (possible == len(wrong) and is_json(wrong))
    if possible < len(wrong):
        with pytest.raises(ValueError) as error:
            json.loads(wrong)
        assert error.value.pos <= possible
