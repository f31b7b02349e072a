"""How the model families write calls of tools."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from decodeloop.engine.text.calls import CallReader, Tools
from decodeloop.engine.text.calls_json import JsonCalls
from decodeloop.engine.text.calls_python import PythonCalls


@dataclass(frozen=True, slots=True)
class Block:
    """Where calls stand: between two markers, or, with an empty `close`, from `open` to their own end."""

    open: str
    close: str
    reader: Callable[[Tools], CallReader]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolForm:
    """A family's notation.

    blocks: what is read as calls. bare: the same at the very start of an answer, by its first character. trigger: the
    marker that nothing but calls begins with. The rest says how calls are written (by a grammar, and for a model whose
    template has no place for them).
    """

    name: str
    blocks: tuple[Block, ...]
    bare: tuple[Block, ...] = ()
    trigger: str | None = None
    arguments_key: str
    begin: str = ""
    before: str = ""
    after: str = ""
    between: str
    end: str = ""

    def call_pieces(self, name: str) -> tuple[str, str]:
        """What stands before and after the arguments of a call of `name`."""
        head = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "{self.arguments_key}": '
        return self.before + head, "}" + self.after

    def write(self, calls: Sequence[tuple[str, str]]) -> str:
        """The text of calls: (name, arguments as JSON text)."""
        written = []
        for name, arguments in calls:
            head, tail = self.call_pieces(name)
            written.append(head + arguments + tail)
        return self.begin + self.between.join(written) + self.end


_TAGS = Block("<tool_call>", "</tool_call>", JsonCalls)

HERMES = ToolForm(
    name="hermes",
    blocks=(_TAGS,),
    trigger=_TAGS.open,
    arguments_key="arguments",
    before="<tool_call>\n",
    after="\n</tool_call>",
    between="\n",
)
TAGGED_LIST = ToolForm(
    name="tagged_list",
    blocks=(_TAGS,),
    trigger=_TAGS.open,
    arguments_key="arguments",
    begin="<tool_call>[",
    between=", ",
    end="]</tool_call>",
)
LLAMA3 = ToolForm(
    name="llama3",
    blocks=(Block("<|python_tag|>", "", JsonCalls), _TAGS),
    bare=(Block("{", "", JsonCalls),),
    arguments_key="parameters",
    between="; ",
)
GEMMA = ToolForm(
    name="gemma",
    blocks=(
        Block("```tool_code", "```", PythonCalls),
        Block("```tool_call", "```", JsonCalls),
        Block("```json", "```", JsonCalls),
    ),
    bare=(Block("{", "", JsonCalls), Block("[", "", PythonCalls)),
    arguments_key="parameters",
    before="```json\n",
    after="\n```",
    between="\n",
)

_BY_FAMILY = {"gemma3": GEMMA, "qwen3": HERMES, "llama": TAGGED_LIST}


def tool_form_for(chat_template: str | None, family: str = "") -> ToolForm:
    """The notation that a template teaches its model; where it teaches none, that of its markers or its family."""
    template = chat_template or ""
    if "<tool_call>" in template:
        return TAGGED_LIST if "<tool_call>[" in template else HERMES
    if "<|python_tag|>" in template or "<|start_header_id|>" in template:
        return LLAMA3
    if "<start_of_turn>" in template:
        return GEMMA
    return _BY_FAMILY.get(family, HERMES)
