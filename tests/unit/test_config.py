"""config.load: strict, typed, and clear about what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from decodeloop.config import ConfigError, load, read_options


@dataclass(frozen=True, slots=True)
class Limits:
    body_bytes: int = 1024
    timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if self.body_bytes < 1:
            raise ValueError("body_bytes must be positive")


@dataclass(frozen=True, slots=True)
class Pool:
    url: str
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    host: str = "127.0.0.1"
    port: int = 8000
    debug: bool = False
    policy: Literal["off", "fixed"] = "off"
    keys: tuple[str, ...] = ()
    limits: Limits = Limits()
    pools: tuple[Pool, ...] = ()
    named: Mapping[str, Pool] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    cache: Limits | None = None
    budget: int | str = 0


def loaded(text: str, **env: str) -> Settings:
    return load(text, Settings, env=env, source="f.yaml")


@pytest.mark.parametrize("text", ["", "\n# nothing\n", "{}", "~"])
def test_nothing_said_is_all_defaults(text: str) -> None:
    assert loaded(text) == Settings()


def test_a_whole_tree() -> None:
    text = """
        port: 9000
        keys: [a, b]
        limits: {body_bytes: 5, timeout_s: 2}
        pools: [{url: "http://a"}, {url: "http://b", weight: 1e-1}]
        named: {fast: {url: x}}
        options: {depth: 3, list: [1, {a: b}]}
        cache: {timeout_s: 1}
        budget: many
    """
    assert loaded(text) == Settings(
        port=9000,
        keys=("a", "b"),
        limits=Limits(5, 2.0),
        pools=(Pool("http://a"), Pool("http://b", 0.1)),
        named={"fast": Pool("x")},
        options={"depth": 3, "list": [1, {"a": "b"}]},
        cache=Limits(timeout_s=1.0),
        budget="many",
    )


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prot: 1", "f.yaml: prot: no such setting; choose from budget, cache, debug"),
        ("limits: {size: 1}", "f.yaml: limits.size: no such setting; choose from body_bytes, timeout_s"),
        ("pools: [{url: a}, {uri: b}]", "f.yaml: pools[1].uri: no such setting; choose from url, weight"),
        ("named: {x: {}}", "f.yaml: named.x.url: missing"),
        ("port: '9000'", "f.yaml: port: Expected `int`, got `str`"),
        ("port: 1.5", "f.yaml: port: Expected `int`, got `float`"),
        ("port: true", "f.yaml: port: Expected `int`, got `bool`"),
        ("host: 3", "f.yaml: host: Expected `str`, got `int`"),
        ("limits: 3", "f.yaml: limits: expected a mapping, got int 3"),
        ("limits:", "f.yaml: limits: expected a mapping, got nothing"),
        ("keys: [a, 1]", "f.yaml: keys[1]: Expected `str`, got `int`"),
        ("keys: a", "f.yaml: keys: "),
        ("limits: {body_bytes: 0}", "f.yaml: limits: body_bytes must be positive"),
        ("policy: on", "f.yaml: policy: Invalid enum value 'on'"),
        ("[1]", "f.yaml: expected a mapping, got list"),
        ("a: [", "f.yaml: "),
        ("port: 1\nport: 2", "'port' is set twice"),
        ("limits: {timeout_s: 1, timeout_s: 2}", "'timeout_s' is set twice"),
        ("options: {1: a}", "f.yaml: options.1: keys are words"),
        ("? [a]\n: 1", "f.yaml: "),
        ("host: !!python/object/apply:os.system [ls]", "f.yaml: "),
        ("limits: {timeout_s: .nan}", "f.yaml: limits.timeout_s: not a number"),
        ("limits: {timeout_s: '${N}'}", "f.yaml: limits.timeout_s: not a number"),
        ("options: {a: [.nan]}", "f.yaml: options.a[0]: not a number"),
        ("options: &all {a: *all}", "f.yaml: a value is nested too deeply, or holds itself"),
        ("keys: &all [*all]", "f.yaml: a value is nested too deeply, or holds itself"),
    ],
)
def test_every_fault_is_named_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(text, N="nan")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("off", "off"),
        ("no", "no"),
        ("08:30", "08:30"),
        ("2026-01-02", "2026-01-02"),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("-1.5", -1.5),
        (".inf", float("inf")),
        ("010", 10),
        ("0x10", 16),
        ("true", True),
        ("~", None),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text: str, value: object) -> None:
    got = loaded(f"options: {{it: {text}}}").options["it"]
    assert got == value
    assert type(got) is type(value)


def test_references_take_the_type_the_field_wants() -> None:
    text = """
        host: ${HOST}.example
        port: ${PORT}
        debug: ${DEBUG}
        keys: ["${KEY}", plain]
        limits:
          timeout_s: ${T}
        options: {raw: "${PORT}"}
        cache: {body_bytes: "${PORT}"}
    """
    got = loaded(text, HOST="h", PORT="81", DEBUG="true", KEY="0123", T="2.5")
    assert got == Settings(
        host="h.example",
        port=81,
        debug=True,
        keys=("0123", "plain"),
        limits=Limits(timeout_s=2.5),
        options={"raw": "81"},
        cache=Limits(body_bytes=81),
    )
    assert type(got.options["raw"]) is str


def test_a_reference_is_text_and_never_yaml_or_a_further_reference() -> None:
    assert loaded("host: ${A}", A="{x: 1}\nport: 2 ${B}").host == "{x: 1}\nport: 2 ${B}"
    assert loaded("host: $${A} $5").host == "${A} $5"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("host: ${NONE}", "f.yaml: host: the environment has no NONE"),
        ("host: ${a b}", "f.yaml: host: ${a b} is not a reference"),
        ("host: ${}", "f.yaml: host: ${} is not a reference"),
        ("port: ${PORT}", "f.yaml: port: Expected `int`, got `str`"),
    ],
)
def test_bad_references(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(text, PORT="eighty")
    assert told in str(caught.value)


_words = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)
_trees = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | _words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_words, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from(["port", "limits", "pools", "options", "keys", "x"]) | _words, _trees, max_size=3)
)
def test_any_document_loads_or_is_a_config_error(document: dict[str, Any]) -> None:
    try:
        got = loaded(yaml.safe_dump(document, allow_unicode=True))
    except ConfigError:
        return
    assert isinstance(got, Settings)


@given(st.text(max_size=40))
def test_any_text_loads_or_is_a_config_error(text: str) -> None:
    try:
        loaded(text)
    except ConfigError:
        return


@dataclass(frozen=True)
class _Options:
    share: float = 0.5
    longest: int = 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"shares": 1}, "part: no option 'shares'; choose from share, longest"),
        ({"share": "1"}, "part: Expected `float`, got `str`"),
        ({"share": float("inf")}, "part: share must be within"),
        ({"share": float("nan")}, "part: share must be within"),
        ({"longest": 2**31}, "part: longest must be within"),
        ({"longest": -(10**30)}, "part: longest must be within"),
    ],
)
def test_options_of_parts_are_refused_with_their_name(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_options(_Options, given, of="part")
    assert told in str(caught.value)


def test_options_of_parts() -> None:
    assert read_options(_Options, {"longest": 2**31 - 1}, of="part") == _Options(longest=2**31 - 1)
