"""OpenTelemetry spans of generative AI, as exporters write them: OTLP JSON, one export a line, or one span a line.

Names by the semantic conventions for generative AI. Texts are there only where their recording was opted into; without
them a span gives lengths and arrival.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

from decodeloop.evaluation.workload import request_class
from decodeloop.evaluation.workloads.importing import Imported, LeftOut, Row, collect, nanoseconds
from decodeloop.evaluation.workloads.workload import WorkRequest
from decodeloop.types import RequestClass

OPERATIONS = ("chat", "text_completion", "generate_content")
PARAMS = {
    "gen_ai.request.max_tokens": "max_tokens",
    "gen_ai.request.temperature": "temperature",
    "gen_ai.request.top_p": "top_p",
    "gen_ai.request.top_k": "top_k",
    "gen_ai.request.seed": "seed",
    "gen_ai.request.stop_sequences": "stop",
    "gen_ai.request.frequency_penalty": "frequency_penalty",
    "gen_ai.request.presence_penalty": "presence_penalty",
}


def read_otel(lines: Iterable[str], name: str) -> Imported:
    """A line may hold many spans; a fault names the line, and costs that line's span alone."""
    return collect(_spans(lines), lambda line, number: _row(orjson.loads(line)), name=name, sources=("OTel spans",))


def _spans(lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Spans, each with the number of the line it was in; what isn't JSON goes through, to be counted."""
    for number, line in enumerate(lines, 1):
        try:
            export = orjson.loads(line)
            resources = export["resourceSpans"]
        except (ValueError, KeyError, TypeError):
            yield number, line
            continue
        for resource in resources:
            for scope in resource.get("scopeSpans", ()):
                yield from ((number, orjson.dumps(span).decode()) for span in scope.get("spans", ()))


def _row(span: Mapping[str, Any]) -> Row:
    attributes = _attributes(span.get("attributes", {}))
    if attributes.get("gen_ai.operation.name") not in OPERATIONS:
        raise LeftOut("no span of a generation")
    if "error.type" in attributes:
        raise LeftOut("failed")
    declared = attributes.get("decodeloop.class")
    request = WorkRequest(
        id=_id(span),
        request_class=request_class(declared) if declared else RequestClass.GENERAL_CHAT,
        messages=_messages(attributes.get("gen_ai.input.messages")),
        params={ours: attributes[theirs] for theirs, ours in PARAMS.items() if theirs in attributes},
        prompt_tokens=attributes.get("gen_ai.usage.input_tokens"),
        output_tokens=attributes.get("gen_ai.usage.output_tokens"),
        session=attributes.get("gen_ai.conversation.id") or attributes.get("session.id"),
    )
    start = span.get("startTimeUnixNano", span.get("start_time_unix_nano"))
    return Row(request, nanoseconds(span["start_time"]) if start is None else int(start))


def _id(span: Mapping[str, Any]) -> str:
    context = span.get("context") or span
    return str(context.get("spanId") or context["span_id"])


def _attributes(found: Any) -> dict[str, Any]:
    """OTLP's list of typed values, or a plain object."""
    if isinstance(found, Mapping):
        return dict(found)
    return {each["key"]: _value(each["value"]) for each in found}


def _value(value: Mapping[str, Any]) -> Any:
    ((kind, content),) = value.items()
    if kind == "intValue":
        return int(content)  # OTLP writes 64-bit integers as text
    if kind == "arrayValue":
        return [_value(each) for each in content.get("values", ())]
    if kind == "kvlistValue":
        return _attributes(content.get("values", ()))
    return content


def _messages(found: Any) -> tuple[Mapping[str, Any], ...]:
    """OTel's messages of parts -> OpenAI's. Only texts: a message of other parts alone is left out."""
    if found is None:
        return ()
    messages = orjson.loads(found) if isinstance(found, str) else found
    spoken = []
    for message in messages:
        texts = [part["content"] for part in message["parts"] if part.get("type") == "text"]
        if texts:
            spoken.append({"role": message["role"], "content": "\n".join(texts)})
    return tuple(spoken)
