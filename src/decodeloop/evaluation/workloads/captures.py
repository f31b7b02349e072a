"""What a gateway wrote down: requests as they came in, with what was counted.

A capture is JSON lines, one request a line: `at` (ISO 8601, or seconds since 1970), `body` (of a chat or text
completion), and where known `id`, `class`, `session`, `usage` (OpenAI's), `status`. Contents of bodies are personal:
see `redaction`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.importing import NS, Imported, LeftOut, Row, collect, nanoseconds
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.types import RequestClass

OURS = ("model", "messages", "prompt", "stream", "stream_options", "user", "metadata", "n")  # no params of the work


def read_capture(lines: Iterable[str], name: str) -> Imported:
    def parse(line: str, number: int) -> Row:
        row = orjson.loads(line)
        if int(row.get("status", 200)) >= 400:
            raise LeftOut("refused or failed")
        body = row["body"]
        if "messages" not in body and "prompt" not in body:
            raise LeftOut("neither a chat nor a text completion")
        prompt = body.get("prompt")
        if prompt is not None and not isinstance(prompt, str):
            raise LeftOut("a prompt of token ids, or several prompts")
        usage = row.get("usage") or {}
        request = WorkRequest(
            id=str(row.get("id", f"line-{number}")),
            request_class=class_of(row.get("class"), body),
            prompt=prompt,
            messages=tuple(body.get("messages", ())),
            params={key: value for key, value in body.items() if key not in (*OURS, "decodeloop")},
            prompt_tokens=usage.get("prompt_tokens"),
            output_tokens=usage.get("completion_tokens"),
            session=row.get("session"),
        )
        return Row(request, _stamp(row["at"]))

    return collect(enumerate(lines, 1), parse, name=name, sources=("gateway capture",), licence="own traffic")


def class_of(declared: str | None, body: Mapping[str, Any]) -> RequestClass:
    """The declared class; else what the body's fields tell, else general chat."""
    declared = declared or (body.get("decodeloop") or {}).get("class")
    if declared is not None:
        return request_class(declared)
    if body.get("tools"):
        return RequestClass.TOOL_CALL
    if (body.get("response_format") or {}).get("type") in ("json_object", "json_schema"):
        return RequestClass.STRUCTURED_JSON
    return RequestClass.GENERAL_CHAT


def _stamp(at: str | float) -> int:
    return nanoseconds(at) if isinstance(at, str) else round(at * NS)
