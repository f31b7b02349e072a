"""From a GrammarSpec to llguidance's own notation, and whether compiling it is known to be cheap."""

from __future__ import annotations

import json
import string
import urllib.parse
from collections.abc import Mapping
from typing import Any

from llguidance import regex_to_lark

from decodeloop.types import GrammarSpec, RequestRefused

KINDS = ("json_object", "json_schema", "regex", "choice", "lark")
MAX_SOURCE_CHARS = 128 * 1024

# Without forcing, a mask holds every token that may come next; with it, text that is certain would have to be spelled
# in one way, found by tokenising all of that text at each step.
_OPTIONS = '\n%llguidance {"no_forcing": true}\n'

# One space, or a line break with its indentation: JSON as models write it, and never white space without end.
_JSON_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,64})?", "json_allow_general_unicode_escapes": True}

_CHEAP_SOURCE_CHARS = 32 * 1024
_CHEAP_LEAVES = frozenset(
    (
        "$comment",
        "$id",
        "$ref",
        "$schema",
        "const",
        "default",
        "description",
        "enum",
        "examples",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "maxItems",
        "maxLength",
        "maximum",
        "minItems",
        "minLength",
        "minimum",
        "required",
        "title",
        "type",
    )
)
_SUBSCHEMAS = frozenset(("additionalProperties", "anyOf", "items", "prefixItems"))
_NAMED_SUBSCHEMAS = frozenset(("$defs", "definitions", "properties"))


def param_of(spec: GrammarSpec) -> str:
    """The request field that a fault in `spec` is blamed on."""
    return "response_format" if spec.kind.startswith("json") else "structured_outputs"


def to_lark(spec: GrammarSpec, *, param: str) -> str:
    """llguidance's dialect of Lark.

    Raises:
        RequestRefused: an unknown kind, or a source that isn't of its kind.
    """
    rules = spec.source if spec.kind == "lark" else "start: " + rule_of(spec, param=param)
    if len(spec.source) > MAX_SOURCE_CHARS:
        raise RequestRefused(f"the grammar has more than {MAX_SOURCE_CHARS} characters", param=param)
    return rules + _OPTIONS


def rule_of(spec: GrammarSpec, *, param: str) -> str:
    """The body of a Lark rule for a spec of any kind but "lark". Raises RequestRefused like `to_lark`."""
    match spec.kind:
        case "json_object":
            return json_rule({"type": "object"})
        case "json_schema":
            return json_rule(_schema(spec.source, param))
        case "regex":
            return regex_rule(spec.source)
        case "choice":
            return " | ".join(map(json.dumps, _choices(spec.source, param)))
    raise RequestRefused(f"no grammar kind {spec.kind!r}; choose from: {', '.join(KINDS)}", param=param)


def json_rule(schema: Mapping[str, Any]) -> str:
    """A rule's body: JSON of `schema`. A keyword that can't be enforced is refused at compilation, never ignored."""
    asked = schema.get("x-guidance")
    options = {**_JSON_OPTIONS, **(asked if isinstance(asked, Mapping) else {}), "lenient": False}
    return "%json " + json.dumps({**_with_uri_references(schema), "x-guidance": options})


def regex_rule(regex: str) -> str:
    """A rule's body: text that `regex`, in the syntax of Rust's regex crate, matches from start to end."""
    return f"/{regex_to_lark(regex, '')}/"


def is_cheap(spec: GrammarSpec) -> bool:
    """Whether compiling takes milliseconds whatever `spec` says: small, no intersection, pattern or user code."""
    if spec.kind == "json_object":
        return True
    if len(spec.source) > _CHEAP_SOURCE_CHARS:
        return False
    return spec.kind == "choice" or (spec.kind == "json_schema" and _cheap_schema(json.loads(spec.source)))


def _with_uri_references(schema: Any) -> Any:
    """References to names beyond ASCII, as generators of schemas write them, percent-encoded as URIs must be."""
    if isinstance(schema, list):
        return [_with_uri_references(item) for item in schema]
    if not isinstance(schema, Mapping):
        return schema
    return {
        key: urllib.parse.quote(value, safe=string.punctuation)
        if key == "$ref" and isinstance(value, str)
        else _with_uri_references(value)
        for key, value in schema.items()
    }


def _schema(source: str, param: str) -> dict[str, Any]:
    schema = _parse(source, "the schema", param)
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise RequestRefused(f"the schema must be an object, and {source[:50]} is none", param=param)
    return schema


def _choices(source: str, param: str) -> list[str]:
    choices = _parse(source, "the list of choices", param)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestRefused("a choice needs a non-empty list of strings", param=param)
    return choices


def _parse(source: str, what: str, param: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"{what} is not valid JSON: {error}", param=param) from None


def _cheap_schema(schema: Any) -> bool:
    if isinstance(schema, list):
        return all(map(_cheap_schema, schema))
    if not isinstance(schema, dict):
        return True
    for key, value in schema.items():
        if key in _NAMED_SUBSCHEMAS and isinstance(value, dict):
            cheap = all(map(_cheap_schema, value.values()))
        elif key in _SUBSCHEMAS:
            cheap = _cheap_schema(value)
        else:
            cheap = key in _CHEAP_LEAVES
        if not cheap:
            return False
    return True
