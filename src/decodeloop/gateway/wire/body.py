"""From bytes to a checked body: strict about what is not understood, lenient about what changes nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, get_args, get_type_hints

import msgspec
import orjson
from msgspec import StructMeta

from decodeloop.types import RequestRefused

__all__ = ["IGNORED", "NEUTRAL", "checked", "dumped", "read_body", "read_object", "shown"]

T = TypeVar("T", bound=msgspec.Struct)

IGNORED = frozenset(
    {
        "metadata",
        "prediction",  # a hint for speed, which our drafters don't need
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that ask nothing of the answer: accepted with any value, without effect."""

ADDRESSES = frozenset({"api_base", "base_url", "api_base_url"})
"""Keys by which other gateways let a body choose the server."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "audio": (),
    "bad_words": ([],),
    "continue_final_message": (False,),
    "detokenize": (True,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "modalities": (["text"],),
    "prompt_logprobs": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "truncate_prompt_tokens": (-1,),
    "use_beam_search": (False,),
    "web_search_options": (),
}
"""Fields accepted only where their value asks for what is done anyway (null always does)."""

_PLACE = re.compile(r" - at `\$\.?(.*)`$")
_FIELD = re.compile(r"^Object (missing required|contains unknown) field `(.*)`", re.DOTALL)


def read_body(raw: bytes, schema: type[T], *, max_depth: int) -> T:
    """Decode a JSON object to `schema`; null counts as absent.

    Raises:
        RequestRefused: 400 naming the field and what it should be.
    """
    given = read_object(raw, max_depth=max_depth)
    known = frozenset(schema.__struct_encode_fields__)
    for name in given.keys() - known - IGNORED:
        _check_neutral(name, given[name], known)
    result: T = checked({name: value for name, value in given.items() if name in known}, schema)
    return result


def read_object(raw: bytes, *, max_depth: int) -> dict[str, Any]:
    """The fields of a JSON object that are not null. Raises RequestRefused."""
    body = _decode(raw)
    if not isinstance(body, dict):
        raise RequestRefused("the request body must be a JSON object")
    if _may_hold_address(raw):
        _refuse_addresses(body)
    given = {name: value for name, value in body.items() if value is not None} if None in body.values() else body
    may_be_deep = raw.count(b"{") + raw.count(b"[") > max_depth
    if may_be_deep and _depth_exceeds({name: value for name, value in given.items() if name != "prompt"}, max_depth):
        raise RequestRefused(f"the request body is nested deeper than {max_depth} levels")
    return given


def dumped(value: Any) -> bytes:
    """Some of a body as JSON again. Raises RequestRefused for a number that no engine could read."""
    try:
        return orjson.dumps(value)
    except TypeError:
        raise RequestRefused("a whole number in the request body has more than 64 bits") from None


def _may_hold_address(raw: bytes) -> bool:
    """Whether a key of ADDRESSES can be in it: spelled out, or with escapes."""
    folded = raw.lower()
    if b"base" in folded:  # as each of them has
        plain = folded.replace(b"-", b"_")
        if any(name.encode() in plain for name in ADDRESSES):
            return True
    return b"\\u00" in folded


def _refuse_addresses(body: Any) -> None:
    """Where a body says where to send something, at any depth, it is refused: no address of a client is contacted."""
    waiting = [body]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            named = next((name for name in value if name.lower().replace("-", "_") in ADDRESSES), None)
            if named is not None:
                raise RequestRefused(f"{shown(named)} is not taken: requests don't choose servers", param=named[:60])
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def checked(value: Any, wanted: Any, at: str = "") -> Any:
    """`value` as `wanted` (a type msgspec knows), or a refusal that names the place, below `at`."""
    try:
        return msgspec.convert(value, wanted)
    except msgspec.ValidationError as error:
        message = str(error)
        found = _PLACE.search(message)
        inner = found[1] if found else ""
        place = f"{at}.{inner}".strip(".").replace(".[", "[")
        what = message[: found.start()] if found else message
        if (field := _FIELD.match(what)) is not None:
            place = f"{place}.{field[2]}".strip(".")[:60]
            what = "missing" if field[1].startswith("missing") else f"unknown field{_choices(wanted, inner)}"
            raise RequestRefused(f"{place!r}: {what}", param=place) from None
        got = _at(value, inner)
        told = "" if isinstance(got, dict | list) else f", got {shown(got)}" if ", got" not in what else ""
        raise RequestRefused(
            f"invalid value for {place!r}: {what}{told}" if place else what, param=place or None
        ) from None


def shown(value: Any) -> str:
    """`value` for a message: never long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _decode(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except RecursionError:
        raise RequestRefused("the request body is nested too deeply") from None
    except msgspec.MsgspecError as error:
        what = str(error).split(" - at ")[0]
        raise RequestRefused(f"the request body is not valid JSON: {what}") from None


def _depth_exceeds(value: dict[str, Any] | list[Any], depth: int) -> bool:
    if depth == 0:
        return True
    for item in value.values() if isinstance(value, dict) else value:
        if (type(item) is dict or type(item) is list) and _depth_exceeds(item, depth - 1):
            return True
    return False


def _check_neutral(name: str, value: Any, known: frozenset[str]) -> None:
    if name in NEUTRAL:
        if value not in NEUTRAL[name]:
            choices = " or ".join(["null", *map(shown, NEUTRAL[name])])
            raise RequestRefused(
                f"{name!r} is not supported here: leave it out, or {choices}", param=name, code="unsupported_parameter"
            )
        return
    near = get_close_matches(name, known, 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    raise RequestRefused(f"unknown field {shown(name)}{hint}", param=name[:60], code="unknown_parameter")


def _at(value: Any, place: str) -> Any:
    """The value at a msgspec path like `stop[1]` or `a.b`; the whole where the path has no names for its steps."""
    for step in re.findall(r"[^.\[\]]+", place):
        if isinstance(value, list) and step.isdigit():
            value = value[int(step)]
        elif isinstance(value, dict) and step in value:
            value = value[step]
    return value


def _choices(wanted: Any, place: str) -> str:
    """What may stand at a msgspec path below `wanted`; "" where that is not said by one type."""
    for step in re.findall(r"[^.\[\]]+", place):
        named = get_type_hints(wanted).get(step) if isinstance(wanted, StructMeta) else None
        wanted = next((kind for kind in (named, *get_args(named)) if isinstance(kind, StructMeta)), None)
    return f"; choose from {', '.join(wanted.__struct_encode_fields__)}" if isinstance(wanted, StructMeta) else ""
