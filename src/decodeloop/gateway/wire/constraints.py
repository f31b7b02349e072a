"""Every spelling of a constrained output to one GrammarSpec."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from decodeloop.gateway.wire.fields import GenerationBody, ResponseFormat
from decodeloop.types import GrammarSpec, RequestRefused

__all__ = ["grammar_of"]

_FORMATS = ("text", "json_object", "json_schema")


def grammar_of(body: GenerationBody) -> GrammarSpec | None:
    """The one constraint that `response_format`, `structured_outputs` or a `guided_*` field sets; None: free text.

    Raises:
        RequestRefused: several are set, or one is incomplete.
    """
    named = {**_response_format(body.response_format), **_guided(body), **_structured(body)}
    if len(named) > 1:
        raise RequestRefused(f"only one of {', '.join(named)} can be set", param=next(iter(named)))
    return next(iter(named.values()), None)


def _response_format(wanted: ResponseFormat | None) -> dict[str, GrammarSpec]:
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.type == "json_object":
        return {"response_format": GrammarSpec("json_object")}
    if wanted.type != "json_schema":
        raise RequestRefused(f"response_format.type must be one of {', '.join(_FORMATS)}", param="response_format.type")
    if wanted.json_schema is None or wanted.json_schema.schema is None:
        raise RequestRefused(
            "response_format json_schema needs json_schema.schema", param="response_format.json_schema.schema"
        )
    return {"response_format": _json_schema(wanted.json_schema.schema)}


def _guided(body: GenerationBody) -> dict[str, GrammarSpec]:
    return _specs("guided_", body.guided_json, body.guided_regex, body.guided_choice, body.guided_grammar)


def _structured(body: GenerationBody) -> dict[str, GrammarSpec]:
    wanted = body.structured_outputs
    if wanted is None:
        return {}
    specs = _specs("structured_outputs.", wanted.json, wanted.regex, wanted.choice, wanted.grammar)
    if wanted.json_object:
        specs["structured_outputs.json_object"] = GrammarSpec("json_object")
    if not specs:
        raise RequestRefused(
            "structured_outputs needs one of json, regex, choice, grammar, json_object", param="structured_outputs"
        )
    return specs


def _specs(
    prefix: str, schema: dict[str, Any] | str | None, regex: str | None, choice: list[str] | None, grammar: str | None
) -> dict[str, GrammarSpec]:
    specs = {}
    if isinstance(schema, str):
        specs[f"{prefix}json"] = _json_schema_text(schema, f"{prefix}json")
    elif schema is not None:
        specs[f"{prefix}json"] = _json_schema(schema)
    if regex is not None:
        specs[f"{prefix}regex"] = GrammarSpec("regex", regex)
    if choice is not None:
        if not choice:
            raise RequestRefused(f"{prefix}choice must not be empty", param=f"{prefix}choice")
        specs[f"{prefix}choice"] = GrammarSpec("choice", _text(choice))
    if grammar is not None:
        specs[f"{prefix}grammar"] = GrammarSpec("lark", grammar)
    return specs


def _json_schema(schema: dict[str, Any] | bool) -> GrammarSpec:
    return GrammarSpec("json_schema", _text(schema))


def _json_schema_text(schema: str, param: str) -> GrammarSpec:
    try:
        value = msgspec.json.decode(schema)
    except (msgspec.MsgspecError, RecursionError):
        value = None
    if not isinstance(value, dict | bool):
        raise RequestRefused(f"{param} must be a JSON schema", param=param)
    return GrammarSpec("json_schema", schema)


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))  # orjson refuses numbers beyond 64 bits
