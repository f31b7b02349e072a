"""Texts without arrivals: Spec-Bench's questions, and plain prompts."""

from __future__ import annotations

from collections.abc import Iterable

import orjson

from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.importing import Imported, Row, collect
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.types import RequestClass

SPEC_BENCH = {
    "writing": RequestClass.CREATIVE_WRITING,
    "roleplay": RequestClass.CREATIVE_WRITING,
    "coding": RequestClass.CODE_SYNTHESIS,
    "extraction": RequestClass.STRUCTURED_JSON,
    "translation": RequestClass.TRANSLATION,
    "summarization": RequestClass.RAG_SUMMARY,
    "rag": RequestClass.RAG_SUMMARY,
}


def read_spec_bench(lines: Iterable[str], name: str) -> Imported:
    """JSON lines of question_id, category, turns. The first turn is asked: later ones need an answer to build on.

    Categories that no class is named for (reasoning, math, humanities, stem, qa) are general chat.
    """

    def parse(line: str, number: int) -> Row:
        row = orjson.loads(line)
        kind = SPEC_BENCH.get(str(row["category"]), RequestClass.GENERAL_CHAT)
        return Row(WorkRequest(id=str(row["question_id"]), request_class=kind, messages=_ask(row["turns"][0])))

    return collect(enumerate(lines, 1), parse, name=name, sources=("Spec-Bench",), licence="see its parts")


def read_prompts(lines: Iterable[str], name: str) -> Imported:
    """One prompt a line: plain text, or a JSON object with prompt, text, turns or messages, and id and class if known.

    A line that begins with a brace is JSON, and malformed if it isn't.
    """

    def parse(line: str, number: int) -> Row:
        line = line.strip()
        if not line.startswith("{"):
            return Row(WorkRequest(id=f"line-{number}", messages=_ask(line)))
        row = orjson.loads(line)
        kind = request_class(row["class"]) if "class" in row else RequestClass.GENERAL_CHAT
        messages = tuple(row["messages"]) if "messages" in row else _ask(_text(row))
        return Row(WorkRequest(id=str(row.get("id", f"line-{number}")), request_class=kind, messages=messages))

    return collect(enumerate(lines, 1), parse, name=name)


def _ask(text: object) -> tuple[dict[str, str], ...]:
    if not isinstance(text, str) or not text.strip():
        raise ValueError("the prompt is no text")
    return ({"role": "user", "content": text},)


def _text(row: dict[str, object]) -> object:
    for name in ("prompt", "text", "question"):
        if name in row:
            return row[name]
    turns = row.get("turns")
    if isinstance(turns, list) and turns:
        return turns[0]
    raise ValueError("no prompt, text, question, turns or messages")
