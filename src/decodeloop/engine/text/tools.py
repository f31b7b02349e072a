"""Tool calls in a stream of text."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto

from decodeloop.engine.text.calls import CallReader, Tools
from decodeloop.engine.text.markers import MarkerScanner
from decodeloop.engine.text.parsed import Parsed
from decodeloop.engine.text.prose import WHITE_SPACE, Prose
from decodeloop.engine.text.tool_forms import Block, ToolForm
from decodeloop.types import ToolCallDelta


class _Place(Enum):
    START = auto()  # of the answer, where calls may stand bare
    PROSE = auto()
    BODY = auto()  # of a block of calls
    CLOSE = auto()  # inside the marker that closes a block
    AFTER_BARE = auto()  # where another bare call may follow


class ToolParser:
    """Separates calls of the offered tools from content. An `AnswerParser`.

    A call is passed on once all of its block has been read: until then it may prove to be no call, and is then content
    to the last character. Only under a grammar, where it can't, are arguments passed on as they come.
    """

    def __init__(
        self, form: ToolForm, tools: Tools, *, call_id: Callable[[int], str], constrained: bool = False
    ) -> None:
        """call_id: the id of the call with that index. constrained: a grammar guarantees that blocks hold calls."""
        self._tools, self._call_id, self._constrained = tools, call_id, constrained
        self._blocks = {block.open: block for block in form.blocks}
        self._bare = {block.open: block for block in form.bare}
        self._scanner = MarkerScanner(tuple(self._blocks))
        self._place = _Place.START if self._bare else _Place.PROSE
        self._prose = Prose()
        self._made = 0  # calls of the blocks before
        self._block: Block = form.blocks[0]
        self._reader: CallReader = self._block.reader(tools)
        self._raw: list[str] = []  # the block, as read
        self._opening = 0  # how many pieces of that are what opens it
        self._closing = 0  # how much of its closing marker has been read
        self._announced: list[int] = []  # per call of the block: how much of its arguments is out
        self._content: list[str] = []
        self._deltas: dict[int, ToolCallDelta] = {}

    def push(self, text: str) -> Parsed:
        self._read(text)
        return self._take()

    def finish(self) -> Parsed:
        while self._place in (_Place.BODY, _Place.CLOSE):
            if self._reader.complete:
                self._succeed()
            elif self._announced:  # a call cut short; it can't be taken back
                self._place = _Place.PROSE
            else:
                self._read(self._give_up())
        if self._place in (_Place.START, _Place.AFTER_BARE):
            self._say("".join(self._raw))
        self._say(self._scanner.finish())
        self._content.append(self._prose.finish())
        return self._take()

    def _read(self, text: str) -> None:
        while text:
            match self._place:
                case _Place.PROSE:
                    text = self._in_prose(text)
                case _Place.BODY:
                    text = self._in_body(text)
                case _Place.CLOSE:
                    text = self._in_close(text)
                case _:
                    text = self._before_bare(text)

    def _in_prose(self, text: str) -> str:
        scan = self._scanner.push(text)
        self._say(scan.text)
        if scan.hit is not None:
            self._begin(self._blocks[scan.hit], [scan.hit])
        return scan.rest

    def _before_bare(self, text: str) -> str:
        """At the start, or after a bare call: white space (and, between calls, a semicolon), then maybe a call."""
        char, again = text[0], self._place is _Place.AFTER_BARE
        if char in WHITE_SPACE or (char == ";" and again and ";" not in self._raw):
            self._raw.append(char)
            return text[1:]
        if char in self._bare:
            self._begin(self._bare[char], self._raw)
            return text
        before, self._raw, self._place = "".join(self._raw), [], _Place.PROSE
        return before + text

    def _begin(self, block: Block, raw: list[str]) -> None:
        self._place, self._block, self._raw = _Place.BODY, block, raw
        self._opening = len(raw) if block.open in self._blocks else len(raw) + 1
        self._reader, self._announced, self._closing = block.reader(self._tools), [], 0

    def _in_body(self, text: str) -> str:
        for at, char in enumerate(text):
            if self._block.close and char == self._block.close[0] and self._reader.complete:
                self._place = _Place.CLOSE
                return text[at:]
            self._raw.append(char)
            if not self._reader.push(char):
                return self._give_up() + text[at + 1 :]
            if self._constrained:
                self._announce()
            if not self._block.close and self._reader.complete:
                self._succeed()
                return text[at + 1 :]
        return ""

    def _in_close(self, text: str) -> str:
        self._raw.append(text[0])
        if text[0] != self._block.close[self._closing]:
            return self._give_up() + text[1:]
        self._closing += 1
        if self._closing == len(self._block.close):
            self._succeed()
        return text[1:]

    def _succeed(self) -> None:
        self._announce()
        self._made += len(self._reader.calls)
        self._prose.block()
        self._raw = []
        self._place = _Place.PROSE if self._block.open in self._blocks and not self._bare else _Place.AFTER_BARE

    def _give_up(self) -> str:
        """The block is none: its opening is content, and what follows that is returned, to be read again."""
        raw, self._raw, self._place = self._raw, [], _Place.PROSE
        if self._announced:  # the grammar that was promised isn't there; what is out can't be taken back
            return raw[-1]
        self._say("".join(raw[: self._opening]))
        return "".join(raw[self._opening :])

    def _announce(self) -> None:
        for place, call in enumerate(self._reader.calls):
            if call.name is None:
                return
            index, is_new = self._made + place, place == len(self._announced)
            if is_new:
                self._announced.append(0)
            more = call.arguments[self._announced[place] :]
            self._announced[place] += len(more)
            if is_new:
                self._add(ToolCallDelta(index, self._call_id(index), call.name, more))
            elif more:
                self._add(ToolCallDelta(index, arguments=more))

    def _add(self, delta: ToolCallDelta) -> None:
        out = self._deltas.get(delta.index)
        if out is not None:
            delta = ToolCallDelta(out.index, out.id, out.name, out.arguments + delta.arguments)
        self._deltas[delta.index] = delta

    def _say(self, text: str) -> None:
        self._content.append(self._prose.say(text))

    def _take(self) -> Parsed:
        parsed = Parsed("".join(self._content), tool_calls=tuple(self._deltas.values()))
        self._content, self._deltas = [], {}
        return parsed
