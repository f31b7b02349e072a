"""The arguments of a call in Python's notation, literals only."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_TOKEN = re.compile(
    r"""\s*(?:
    (?P<string>'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")
    |(?P<number>-?\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
    |(?P<word>[^\W\d]\w*)
    |(?P<sign>[=,:()\[\]{}])
    )""",
    re.VERBOSE | re.DOTALL,
)
_WORDS = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "\0", "\n": ""}
_MAX_DEPTH = 64
_MAX_DIGITS = 400


class NotArguments(Exception):
    """The text between the parentheses isn't a list of literal arguments."""


def read_arguments(text: str, parameters: Sequence[str]) -> dict[str, Any]:
    """`a=1, b=[True, "x"]` to values that JSON can hold.

    parameters: the names that positional arguments take.

    Raises:
        NotArguments: anything but literals, a name given twice, too many positions.
    """
    reader, arguments = _Reader(text), dict[str, Any]()
    while not reader.at_end:
        if reader.next_is("word") and reader.peek(1) == ("sign", "="):
            name = reader.take()[1]
            reader.take()
        elif len(arguments) < len(parameters) and list(arguments) == list(parameters[: len(arguments)]):
            name = parameters[len(arguments)]
        else:
            raise NotArguments
        if name in arguments:
            raise NotArguments
        arguments[name] = reader.value(0)
        if not reader.at_end:
            reader.expect(",")
    return arguments


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[str, str]] = []
        at, text = 0, text.rstrip()
        while at < len(text):
            token = _TOKEN.match(text, at)
            if token is None or token.lastgroup is None:
                raise NotArguments
            self._tokens.append((token.lastgroup, token[token.lastgroup]))
            at = token.end()
        self._at = 0

    @property
    def at_end(self) -> bool:
        return self._at == len(self._tokens)

    def peek(self, ahead: int = 0) -> tuple[str, str] | None:
        place = self._at + ahead
        return self._tokens[place] if place < len(self._tokens) else None

    def next_is(self, kind: str) -> bool:
        token = self.peek()
        return token is not None and token[0] == kind

    def take(self) -> tuple[str, str]:
        token = self.peek()
        if token is None:
            raise NotArguments
        self._at += 1
        return token

    def expect(self, sign: str) -> None:
        if self.take() != ("sign", sign):
            raise NotArguments

    def value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise NotArguments
        kind, text = self.take()
        if kind == "string":
            return _ESCAPE.sub(_unescape, text[1:-1])
        if kind == "number":
            return _number(text)
        if kind == "word" and text in _WORDS:
            return _WORDS[text]
        if text == "[":
            return self._items("]", depth)
        if text == "(":
            return self._items(")", depth)
        if text == "{":
            return self._pairs(depth)
        raise NotArguments

    def _items(self, end: str, depth: int) -> list[Any]:
        items: list[Any] = []
        while self.peek() != ("sign", end):
            items.append(self.value(depth + 1))
            if self.peek() != ("sign", end):
                self.expect(",")
        self.take()
        return items

    def _pairs(self, depth: int) -> dict[str, Any]:
        pairs: dict[str, Any] = {}
        while self.peek() != ("sign", "}"):
            if not self.next_is("string"):
                raise NotArguments
            key = self.value(depth + 1)
            self.expect(":")
            pairs[key] = self.value(depth + 1)
            if self.peek() != ("sign", "}"):
                self.expect(",")
        self.take()
        return pairs


def _number(text: str) -> int | float:
    if len(text) > _MAX_DIGITS:
        raise NotArguments
    if text.lstrip("-").isdigit():
        return int(text)
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise NotArguments
    return value


def _unescape(escape: re.Match[str]) -> str:
    code = escape[1]
    if len(code) > 1:
        number = int(code[1:], 16)
        if number > 0x10FFFF or 0xD800 <= number < 0xE000:
            raise NotArguments
        return chr(number)
    return _LETTERS.get(code, code if code in "\\'\"" else escape[0])
