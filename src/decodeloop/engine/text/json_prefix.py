"""Whether a growing text can still become JSON (RFC 8259), a character at a time."""

from __future__ import annotations

from enum import Enum, auto

_SPACE = " \t\r\n"
_HEX = frozenset("0123456789abcdefABCDEF")
_DIGITS = frozenset("0123456789")
_LITERALS = {"t": "rue", "f": "alse", "n": "ull"}
_CLOSE = {"{": "}", "[": "]"}


class Next(Enum):
    """What may come next."""

    VALUE = auto()
    VALUE_OR_END = auto()  # after [
    KEY = auto()
    KEY_OR_END = auto()  # after {
    COLON = auto()
    COMMA_OR_END = auto()
    STRING = auto()  # inside one
    LITERAL = auto()
    NUMBER = auto()
    NOTHING = auto()  # the value is complete


# Number states (the last significant part read) and what each may be followed by.
_NUMBER = {
    "-": {"0": "0", "1-9": "i"},
    "0": {".": ".", "e": "e"},
    "i": {"0": "i", "1-9": "i", ".": ".", "e": "e"},
    ".": {"0": "f", "1-9": "f"},
    "f": {"0": "f", "1-9": "f", "e": "e"},
    "e": {"0": "x", "1-9": "x", "-": "s", "+": "s"},
    "s": {"0": "x", "1-9": "x"},
    "x": {"0": "x", "1-9": "x"},
}
_NUMBER_ENDS = frozenset("0ifx")


class Event(Enum):
    """What a character did. A number has no last character until the next one, so its end is no event."""

    IMPOSSIBLE = auto()  # no JSON text goes on like this
    NOTHING = auto()
    KEY_STARTS = auto()
    KEY_ENDS = auto()
    VALUE_STARTS = auto()
    VALUE_ENDS = auto()


class JsonPrefix:
    """Reads one JSON value. Equal in judgement to `json.loads`, save that it takes no NaN or Infinity."""

    def __init__(self) -> None:
        self.stack: list[str] = []  # open containers, { or [
        self._next = Next.VALUE
        self._is_key = False
        self._escape = 0  # characters an escape still needs: -1 its letter, n > 0 hexadecimal digits
        self._literal = ""
        self._number = ""

    @property
    def complete(self) -> bool:
        return self._next is Next.NOTHING or (
            self._next is Next.NUMBER and not self.stack and self._number in _NUMBER_ENDS
        )

    def push(self, char: str) -> Event:
        """Read `char`; after IMPOSSIBLE nothing more may be pushed."""
        if self._next is Next.STRING:
            return self._in_string(char)
        if self._next is Next.LITERAL:
            return self._in_literal(char)
        if self._next is Next.NUMBER:
            kind = _number_kind(char)
            if kind in _NUMBER[self._number]:
                self._number = _NUMBER[self._number][kind]
                return Event.NOTHING
            if self._number not in _NUMBER_ENDS:
                return Event.IMPOSSIBLE
            self._value_ends()
        return Event.NOTHING if char in _SPACE else self._structure(char)

    def _structure(self, char: str) -> Event:
        due = self._next
        if due in (Next.VALUE, Next.VALUE_OR_END) and self._value_starts(char):
            return Event.VALUE_STARTS
        if due in (Next.KEY, Next.KEY_OR_END) and char == '"':
            self._next, self._is_key = Next.STRING, True
            return Event.KEY_STARTS
        if due is Next.COLON and char == ":":
            self._next = Next.VALUE
            return Event.NOTHING
        if due is Next.COMMA_OR_END and char == ",":
            self._next = Next.KEY if self.stack[-1] == "{" else Next.VALUE
            return Event.NOTHING
        ends = due in (Next.COMMA_OR_END, Next.KEY_OR_END, Next.VALUE_OR_END)
        if ends and char == _CLOSE[self.stack[-1]]:
            self.stack.pop()
            return self._value_ends()
        return Event.IMPOSSIBLE

    def _value_starts(self, char: str) -> bool:
        if char == '"':
            self._next, self._is_key = Next.STRING, False
        elif char in _CLOSE:
            self.stack.append(char)
            self._next = Next.KEY_OR_END if char == "{" else Next.VALUE_OR_END
        elif char in _LITERALS:
            self._next, self._literal = Next.LITERAL, _LITERALS[char]
        elif char == "-" or char in _DIGITS:
            self._next, self._number = Next.NUMBER, char if char in "-0" else "i"
        else:
            return False
        return True

    def _value_ends(self) -> Event:
        self._next = Next.COMMA_OR_END if self.stack else Next.NOTHING
        return Event.VALUE_ENDS

    def _in_string(self, char: str) -> Event:
        if self._escape > 0:
            self._escape -= 1
            return Event.NOTHING if char in _HEX else Event.IMPOSSIBLE
        if self._escape:
            self._escape = 4 if char == "u" else 0
            return Event.NOTHING if char in '"\\/bfnrtu' else Event.IMPOSSIBLE
        if char == '"' and self._is_key:
            self._next = Next.COLON
            return Event.KEY_ENDS
        if char == '"':
            return self._value_ends()
        if char == "\\":
            self._escape = -1
        return Event.NOTHING if char >= " " else Event.IMPOSSIBLE

    def _in_literal(self, char: str) -> Event:
        if not self._literal.startswith(char):
            return Event.IMPOSSIBLE
        self._literal = self._literal[1:]
        return Event.NOTHING if self._literal else self._value_ends()


def _number_kind(char: str) -> str:
    if "1" <= char <= "9":
        return "1-9"
    return "e" if char == "E" else char
