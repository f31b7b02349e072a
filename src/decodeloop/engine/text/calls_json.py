"""Calls written as JSON: {"name": ..., "arguments": {...}}, or a list of these."""

from __future__ import annotations

import json

from decodeloop.engine.text.calls import Tools, WrittenCall
from decodeloop.engine.text.json_prefix import Event, JsonPrefix

_ARGUMENTS = ("arguments", "parameters")
_STARTS = {"name": '"', "arguments": '{"n', "parameters": '{"n', "type": '"', "id": '"-0123456789n'}


class JsonCalls:
    """A `CallReader`. Arguments are the model's own text; when they are written as a string, what it holds."""

    def __init__(self, tools: Tools) -> None:
        self.calls: list[WrittenCall] = []
        self._tools = tools
        self._json = JsonPrefix()
        self._level = 1  # how many containers are open directly inside a call
        self._key: str | None = None  # whose value is being read
        self._keys: set[str] = set()
        self._read: list[str] | None = None  # the key or value being read, as written

    @property
    def complete(self) -> bool:
        return self._json.complete and bool(self.calls)

    def push(self, char: str) -> bool:
        event = self._json.push(char)
        if event is Event.IMPOSSIBLE:
            return False
        level = len(self._json.stack)
        if event is Event.VALUE_STARTS:
            outside = level - (char in "{[")
            if outside < self._level:
                return self._container_starts(char, outside)
            if outside == self._level:
                return self._value_starts(char)
        elif event is Event.KEY_STARTS and level == self._level:
            self._read = []
        self._go_on(char)
        if level == self._level and event is Event.KEY_ENDS:
            return self._key_ends()
        if level == self._level and event is Event.VALUE_ENDS:
            return self._value_ends()
        return level != self._level - 1 or event is not Event.VALUE_ENDS or self._call_ends()

    def _container_starts(self, char: str, outside: int) -> bool:
        """A call, or the list of them."""
        if char == "[" and outside == 0:
            self._level = 2
            return True
        if char != "{":
            return False
        self.calls.append(WrittenCall())
        self._keys = set()
        return True

    def _go_on(self, char: str) -> None:
        if self._read is not None:
            self._read.append(char)
            if self._key in _ARGUMENTS and self._read[0] == "{":
                self.calls[-1].arguments += char

    def _key_ends(self) -> bool:
        assert self._read is not None
        self._key, self._read = json.loads("".join(self._read)), None
        kind = "arguments" if self._key in _ARGUMENTS else str(self._key)
        known = self._key in _STARTS and kind not in self._keys
        self._keys.add(kind)
        return known

    def _value_starts(self, char: str) -> bool:
        assert self._key is not None
        self._read = []
        self._go_on(char)
        return char in _STARTS[self._key]

    def _value_ends(self) -> bool:
        """The value of a key of a call, except a number."""
        assert self._read is not None
        written, call = "".join(self._read), self.calls[-1]
        key, self._key, self._read = self._key, None, None
        if key == "name":
            call.name = json.loads(written)
            return call.name in self._tools
        if key in _ARGUMENTS and written[0] == '"':
            call.arguments = json.loads(written)
            return _is_object(call.arguments)
        return True

    def _call_ends(self) -> bool:
        call = self.calls[-1]
        call.arguments, call.whole, self._read = call.arguments or "{}", True, None
        return call.name is not None


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False
