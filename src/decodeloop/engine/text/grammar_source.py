"""From a GrammarSpec to llguidance's own notation, and whether compiling it is known to be cheap."""

from __future__ import annotations

import json
from typing import Any

from llguidance import LLMatcher

from decodeloop.types import GrammarSpec, RequestRefused

KINDS = ("json_object", "json_schema", "regex", "choice", "lark")
MAX_SOURCE_CHARS = 512 * 1024

# One space, or a line break with its indentation: JSON that models write, and no endless white space.
JSON_DEFAULTS: Any = {"whitespace_pattern": r"( |\n[ \t]{0,64})?", "json_allow_general_unicode_escapes": True}
JSON_RULES: Any = {"lenient": False}  # a keyword that can't be enforced is refused, never ignored

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


def to_llguidance(spec: GrammarSpec, *, param: str) -> str:
    """llguidance's serialised grammar.

    Raises:
        RequestRefused: an unknown kind, or a source that isn't of its kind.
    """
    if len(spec.source) > MAX_SOURCE_CHARS:
        raise RequestRefused(f"the grammar has more than {MAX_SOURCE_CHARS} characters", param=param)
    match spec.kind:
        case "json_object":
            return json_grammar({"type": "object"})
        case "json_schema":
            return json_grammar(_schema(spec.source, param))
        case "regex":
            return str(LLMatcher.grammar_from_regex(spec.source))
        case "choice":
            return str(
                LLMatcher.grammar_from_lark("start: " + " | ".join(map(json.dumps, _choices(spec.source, param))))
            )
        case "lark":
            return str(LLMatcher.grammar_from_lark(spec.source))
    raise RequestRefused(f"no grammar kind {spec.kind!r}; choose from: {', '.join(KINDS)}", param=param)


def json_grammar(schema: Any) -> str:
    return str(LLMatcher.grammar_from_json_schema(json.dumps(schema), JSON_DEFAULTS, JSON_RULES))


def is_cheap(spec: GrammarSpec) -> bool:
    """Whether compiling takes milliseconds whatever `spec` says: small, no intersection, pattern or user code."""
    if spec.kind == "json_object":
        return True
    if len(spec.source) > _CHEAP_SOURCE_CHARS:
        return False
    return spec.kind == "choice" or (spec.kind == "json_schema" and _cheap_schema(json.loads(spec.source)))


def _schema(source: str, param: str) -> Any:
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise RequestRefused(f"the schema is not valid JSON: {error}", param=param) from None


def _choices(source: str, param: str) -> list[str]:
    choices = _schema(source, param)
    if not isinstance(choices, list) or not choices or not all(isinstance(choice, str) for choice in choices):
        raise RequestRefused("a choice needs a non-empty list of strings", param=param)
    return choices


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
