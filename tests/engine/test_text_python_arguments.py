import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.engine.text.python_arguments import NotArguments, read_arguments

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-zA-Zěšč_]\w{0,5}", fullmatch=True)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_pythons_own_notation_is_read_back(arguments):
    text = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    assert read_arguments(text, ()) == arguments


@given(st.lists(VALUES, max_size=3), VALUES)
def test_positions_take_the_parameters_names(values, last):
    text = ", ".join([*map(repr, values), f"z={last!r}"])
    assert read_arguments(text, ("a", "b", "c")) == {**dict(zip("abc", values, strict=False)), "z": last}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=true, b=false, c=null", {"a": True, "b": False, "c": None}),
        ("a='\\u010d\\n\\x41\\'\\q'", {"a": "č\nA'\\q"}),
        ("a=(1, 2,), b=(),", {"a": [1, 2], "b": []}),
        (" a = 1 ,\n b = -1.5e3 ", {"a": 1, "b": -1500.0}),
        ("", {}),
    ],
)
def test_what_models_write(text, value):
    assert read_arguments(text, ()) == value


@pytest.mark.parametrize(
    "text",
    [
        *("a", "a=", "a=b", "a=f()", "a=1+1", "a=1 b=2", "1", "a=1, a=2", "a=[1", "a=(1]", "a={1: 2}", "a=__import__"),
        *(",", "a=1e999", "a='\\ud800'", "a='x", "a=b'x'", "**{'a': 1}", "=1", "a=" + "[" * 100 + "]" * 100),
        "a=" + "9" * 5000,
    ],
)
def test_what_is_no_literal_is_refused(text):
    with pytest.raises(NotArguments):
        read_arguments(text, ())


def test_too_many_positions_and_a_position_after_a_name():
    for text in ("1, 2", "a=1, 2"):
        with pytest.raises(NotArguments):
            read_arguments(text, ("b",))


@given(st.text("a=1,[]{}()'\":\\ ", max_size=12))
def test_any_text_is_read_or_refused(text):
    with contextlib.suppress(NotArguments):
        json.dumps(read_arguments(text, ("a",)))
