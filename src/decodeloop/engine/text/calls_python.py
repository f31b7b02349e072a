"""Calls written as Python: f(a=1, b="x"), one after another or in a list."""

from __future__ import annotations

import json

from decodeloop.engine.text.calls import Tools, WrittenCall
from decodeloop.engine.text.python_arguments import NotArguments, read_arguments

_SPACE = " \t\r\n"
_CLOSE = {"(": ")", "[": "]", "{": "}"}


class PythonCalls:
    """A `CallReader`. Arguments become JSON; positional ones take the names of the tool's parameters in order."""

    def __init__(self, tools: Tools) -> None:
        self.calls: list[WrittenCall] = []
        self._tools = tools
        self._list: bool | None = None  # whether the calls stand in [ ]; None until the first character says
        self._closed = False
        self._name = ""
        self._arguments = ""
        self._open: list[str] = []  # the closing brackets that are due inside arguments
        self._quote = ""
        self._escaped = False

    @property
    def complete(self) -> bool:
        return self._closed or (not self._list and bool(self.calls) and not self._name)

    def push(self, char: str) -> bool:
        if self._open:
            return self._in_arguments(char)
        return self._in_name(char) if self._name else self._between(char)

    def _between(self, char: str) -> bool:
        if char in _SPACE or (char in ",;" and bool(self.calls) and not self._closed):
            return True
        if self._list is None:
            self._list = char == "["
            return self._list or self._in_name(char)
        if self._list and char == "]" and self.calls and not self._closed:
            self._closed = True
            return True
        return not self._closed and self._in_name(char)

    def _in_name(self, char: str) -> bool:
        if char == "(" and self._name in self._tools:
            self._open = [")"]
            return True
        self._name += char
        return self._tools.may_become(self._name)

    def _in_arguments(self, char: str) -> bool:
        if self._quote:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == self._quote:
                self._quote = ""
        elif char in "'\"":
            self._quote = char
        elif char in _CLOSE:
            self._open.append(_CLOSE[char])
        elif char in ")]}":
            if self._open.pop() != char:
                return False
            if not self._open:
                return self._call_ends()
        self._arguments += char
        return True

    def _call_ends(self) -> bool:
        name, text = self._name, self._arguments
        self._name = self._arguments = ""
        try:
            arguments = read_arguments(text, self._tools.parameter_names(name))
        except NotArguments:
            return False
        self.calls.append(WrittenCall(name, json.dumps(arguments, ensure_ascii=False), whole=True))
        return True
