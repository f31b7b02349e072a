"""How a model's answers are constrained and read, as its template, its tools and the request's choices have it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from decodeloop.engine.text import Tokenizer
from decodeloop.engine.text.calls import Tools
from decodeloop.engine.text.chat import ChatTemplate
from decodeloop.engine.text.grammar_source import param_of, rule_of
from decodeloop.engine.text.output import Output
from decodeloop.engine.text.parsed import AnswerParser, Parsed
from decodeloop.engine.text.reasoning import CLOSE, OPEN, ReasoningParser, Thinking
from decodeloop.engine.text.tool_choice import MAX_CALLS, calls_rules, must_call, strict_rules
from decodeloop.engine.text.tools import ToolParser
from decodeloop.types import ChatPrompt, GrammarSpec, Request

_THOUGHT = r"thought[lazy]: /(.|\n)*" + CLOSE.replace("/", r"\/") + "/\n" + r"gap: /[ \n]{0,4}/"
_STARTS = {
    Thinking.FREE: f'start: ("{OPEN}" thought gap)? answer\n{_THOUGHT}\n',
    Thinking.OPENED: f"start: thought gap answer\n{_THOUGHT}\n",
    Thinking.CLOSED: "start: answer\n",
}


@dataclass(frozen=True, slots=True)
class Imposed:
    """A grammar that an answer must follow. param: the request field it comes from."""

    spec: GrammarSpec
    param: str


class Parsing:
    """The reading side of one model. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        """shown: control tokens that a grammar must see as text."""
        self._tokenizer, self._template = tokenizer, template
        self._thinking_ids = self._special_ids((OPEN, CLOSE) if template.reasons else ())
        blocks = template.form.blocks
        self._tool_ids = self._special_ids([marker for block in blocks for marker in (block.open, block.close)])
        closed = [marker for block in blocks if block.close for marker in (block.open, block.close)]
        self.shown = self._thinking_ids | self._special_ids(closed)

    def grammar(self, request: Request) -> Imposed | None:
        """What the request's tool choice or response format imposes; reasoning stays free.

        Raises:
            RequestRefused: a tool choice that can't be, or a source that isn't of its kind.
        """
        prompt, asked = request.prompt, request.params.grammar
        if not isinstance(prompt, ChatPrompt):
            return None if asked is None else Imposed(asked, param_of(asked))
        thinking, rules = self._template.thinking(prompt), self._tool_rules(request, prompt)
        if rules is not None:
            return Imposed(GrammarSpec("lark", _STARTS[thinking] + rules), "tools")
        if asked is None:
            return None
        param = param_of(asked)
        if thinking is Thinking.CLOSED or asked.kind == "lark":
            return Imposed(asked, param)
        return Imposed(GrammarSpec("lark", f"{_STARTS[thinking]}answer: {rule_of(asked, param=param)}"), param)

    def _tool_rules(self, request: Request, prompt: ChatPrompt) -> str | None:
        """Lark rules of an answer whose calls are certain to be calls; None where they may turn out to be none."""
        tools = Tools(prompt.tools)
        names = must_call(tools, prompt.tool_choice)
        if names:
            most = MAX_CALLS if prompt.parallel_tool_calls else 1
            return calls_rules(self._template.form, tools, names, most=most)
        if prompt.tool_choice == "none" or request.params.grammar is not None:
            return None
        return strict_rules(self._template.form, tools)

    def opener(self, request: Request) -> Callable[[int], Output]:
        """Makes the `Output` of a choice, given its index."""
        prompt = request.prompt
        if not isinstance(prompt, ChatPrompt):
            return lambda choice: Output(self._tokenizer, request.params)
        tools = Tools(prompt.tools if prompt.tool_choice != "none" else ())
        shown = self._thinking_ids | (self._tool_ids if tools.functions else frozenset())
        thinking = self._template.thinking(prompt)
        constrained = self._tool_rules(request, prompt) is not None

        def open_output(choice: int) -> Output:
            parsers: list[AnswerParser] = [ReasoningParser(thinking)] if self._template.reasons else []
            if tools.functions:
                call_id = f"call-{request.id}-{choice}-{{}}".format
                parsers.append(ToolParser(self._template.form, tools, call_id=call_id, constrained=constrained))
            return Output(self._tokenizer, request.params, parser=Chain(parsers) if parsers else None, shown=shown)

        return open_output

    def _special_ids(self, markers: list[str] | tuple[str, ...]) -> frozenset[int]:
        """The markers that this tokenizer has as control tokens."""
        encoded = [self._tokenizer.encode(marker, special=True) for marker in markers if marker]
        return frozenset(ids[0] for ids in encoded if len(ids) == 1 and self._tokenizer.is_special(ids[0]))


class Chain:
    """Parsers that each read the content of the one before. An `AnswerParser`."""

    def __init__(self, parsers: list[AnswerParser]) -> None:
        self._parsers = parsers

    def push(self, text: str) -> Parsed:
        parsed = Parsed(text)
        for parser in self._parsers:
            parsed = Parsed(reasoning=parsed.reasoning, tool_calls=parsed.tool_calls).then(parser.push(parsed.content))
        return parsed

    def finish(self) -> Parsed:
        parsed = Parsed()
        for parser in self._parsers:
            read = parser.push(parsed.content).then(parser.finish())
            parsed = Parsed(reasoning=parsed.reasoning, tool_calls=parsed.tool_calls).then(read)
        return parsed
