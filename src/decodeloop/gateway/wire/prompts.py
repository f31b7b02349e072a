"""Prompts of the completions API: text or token ids, one or several."""

from __future__ import annotations

from typing import Any

from decodeloop.types import Prompt, RequestRefused

__all__ = ["prompts_of"]

_MAX_TOKEN_ID = 2**31 - 1


def prompts_of(given: Any) -> tuple[Prompt, ...]:
    """One engine prompt for each that was asked: a string, a list of strings, of token ids, or of lists of those."""
    if given is None:
        raise RequestRefused("'prompt' is missing", param="prompt")
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list):
        raise _wrong()
    if not given:
        raise RequestRefused("'prompt' must not be an empty list", param="prompt")
    if _kinds(given) == {int}:
        return (_tokens(given, "prompt"),)
    return tuple(_one(item, place) for place, item in enumerate(given))


def _one(item: Any, place: int) -> Prompt:
    if isinstance(item, str):
        return item
    if isinstance(item, list):
        return _tokens(item, f"prompt[{place}]")
    raise _wrong()


def _tokens(ids: list[Any], param: str) -> tuple[int, ...]:
    if not ids:
        raise RequestRefused(f"{param} must not be an empty list of token ids", param=param)
    if _kinds(ids) != {int}:
        raise _wrong()
    if min(ids) < 0 or max(ids) > _MAX_TOKEN_ID:
        raise RequestRefused(f"{param} holds a number that is no token id", param=param)
    return tuple(ids)


def _kinds(items: list[Any]) -> set[type]:
    return set(map(type, items))


def _wrong() -> RequestRefused:
    return RequestRefused(
        "'prompt' must be a string, a list of strings, a list of token ids or a list of lists of token ids",
        param="prompt",
    )
