"""Settings from YAML: strict, and the same for every package's section."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

__all__ = ["ConfigError", "load", "read_options"]

T = TypeVar("T")

MOST_OPTION = 2**31 - 1  # of a component's own options: what compiled parts count with

_REFERENCE = re.compile(r"\$?\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class ConfigError(ValueError):
    """A configuration that cannot be used: where the fault is, what it is, what would be right."""


def load(text: str, section: type[T], *, env: Mapping[str, str], source: str = "configuration") -> T:
    """Build `section`, a dataclass whose fields are values or further dataclasses, from YAML `text`.

    Scalars follow YAML 1.2 (`off` and `no` are words, `1e3` is a number). `${NAME}` or `${env:NAME}` in a value stands
    for env[NAME] and takes the type that the field wants, quoted or not (inside `{}` and `[]` YAML needs the quotes);
    `$${` is a literal `${`.

    Raises:
        ConfigError: bad YAML, an unknown or repeated key, a wrong type, a missing name in `env`; the message holds
            `source`, the path of the field and the choices.
    """
    try:
        document = yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: {' '.join(str(error).split())}") from None
    try:
        built: T = _Builder(env, source).build({} if document is None else document, section, "")
    except RecursionError:  # YAML's anchors let a value hold itself
        raise ConfigError(f"{source}: a value is nested too deeply, or holds itself") from None
    return built


def read_options(kind: type[T], given: Mapping[str, Any], *, of: str) -> T:
    """A component's own options as the dataclass `kind`, whose checks run too. of: whose, for messages.

    Raises:
        ValueError: an option that does not exist, a wrong type, or a value that the dataclass refuses.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"{of}: no option {name!r}; choose from {', '.join(known)}")
        if isinstance(value, int | float) and not abs(value) <= MOST_OPTION:
            raise ValueError(f"{of}: {name} must be within {-MOST_OPTION} and {MOST_OPTION}, not {value}")
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"{of}: {error}") from None


class _Resolved(str):
    """Text that came from a reference, and so has no YAML type of its own."""

    __slots__ = ()


class _Builder:
    def __init__(self, env: Mapping[str, str], source: str) -> None:
        self._env, self._source = env, source

    def build(self, value: Any, wanted: Any, path: str) -> Any:
        if is_dataclass(wanted):
            return self._section(value, wanted, path)
        arguments = get_args(wanted)
        if get_origin(wanted) in (Union, UnionType):
            return self._union(value, wanted, arguments, path)
        if isinstance(value, Mapping):
            item = arguments[1] if get_origin(wanted) in (dict, Mapping) else Any
            value = {self._key(key, path): self.build(each, item, _join(path, key)) for key, each in value.items()}
        elif isinstance(value, Sequence) and not isinstance(value, str):
            value = [
                self.build(each, _item_type(arguments, place), f"{path}[{place}]") for place, each in enumerate(value)
            ]
        elif isinstance(value, str):
            value = self._expanded(value, path)
        return self._leaf(value, wanted, path)

    def _section(self, value: Any, wanted: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            raise self._error(path, f"expected a mapping, got {_described(value)}")
        hints = get_type_hints(wanted)
        known = [field.name for field in fields(wanted) if field.init]
        for key in value:
            if key not in known:
                raise self._error(_join(path, key), f"no such setting; choose from {', '.join(sorted(known))}")
        for field in fields(wanted):
            if field.init and field.name not in value and field.default is field.default_factory is MISSING:
                raise self._error(_join(path, field.name), "missing")
        parts = {key: self.build(each, hints[key], _join(path, key)) for key, each in value.items()}
        try:
            return wanted(**parts)
        except ValueError as error:
            raise self._error(path, str(error)) from None

    def _union(self, value: Any, wanted: Any, arguments: tuple[Any, ...], path: str) -> Any:
        choices = [choice for choice in arguments if choice is not type(None)]
        if value is None and len(choices) < len(arguments):
            return None
        if len(choices) == 1:
            return self.build(value, choices[0], path)
        return self._leaf(self._expanded(value, path) if isinstance(value, str) else value, wanted, path)

    def _leaf(self, value: Any, wanted: Any, path: str) -> Any:
        resolved = isinstance(value, _Resolved)
        try:
            leaf = msgspec.convert(str(value) if resolved else value, wanted, strict=not resolved)
        except msgspec.ValidationError as error:
            raise self._error(path, str(error)) from None
        if isinstance(leaf, float) and math.isnan(leaf):  # it would pass every check of bounds
            raise self._error(path, "not a number")
        return leaf

    def _expanded(self, value: str, path: str) -> str:
        def resolve(found: re.Match[str]) -> str:
            if found[0].startswith("$$"):
                return found[0][1:]
            name = found[1].removeprefix("env:")
            if not _NAME.fullmatch(name):
                raise self._error(path, f"{found[0]} is not a reference; write ${{NAME}}, or $${{ for a literal one")
            if name not in self._env:
                raise self._error(path, f"the environment has no {name}")
            return self._env[name]

        expanded, count = _REFERENCE.subn(resolve, value)
        return _Resolved(expanded) if count else value

    def _key(self, key: Any, path: str) -> str:
        if not isinstance(key, str):
            raise self._error(_join(path, key), f"keys are words, got {_described(key)}")
        return key

    def _error(self, path: str, message: str) -> ConfigError:
        return ConfigError(": ".join(part for part in (self._source, path, message) if part))


def _item_type(arguments: tuple[Any, ...], place: int) -> Any:
    """The type of a sequence's item: of list[X], Sequence[X], tuple[X, ...] or tuple[X, Y]."""
    if not arguments:
        return Any
    if len(arguments) == 1 or arguments[-1] is Ellipsis:
        return arguments[0]
    return arguments[place] if place < len(arguments) else Any


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _described(value: Any) -> str:
    return "nothing" if value is None else f"{type(value).__name__} {value!r}"


class _Loader(yaml.SafeLoader):
    """YAML 1.2's core types (1.1 reads `off` as false and 08:30 as 510), repeated keys refused."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for place, key in enumerate(keys):
            if key in keys[:place]:
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is set twice", node.start_mark)
        return super().construct_mapping(node, deep=deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        text = str(node.value)
        return int(text, 0) if text.startswith(("0x", "0o")) else int(text)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        text = str(node.value).lower()
        return float(text.replace(".inf", "inf").replace(".nan", "nan"))


_Loader.yaml_implicit_resolvers = {}
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
    ("merge", r"<<", ["<"]),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
