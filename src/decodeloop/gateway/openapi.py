"""`GET /openapi.json`: the API in OpenAPI 3.1, from the same types that check the bodies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from decodeloop import __version__
from decodeloop.gateway.client_events import EventBody
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.reference import ReferenceBody
from decodeloop.gateway.wire.fields import ChatBody, CompletionBody

__all__ = ["OpenApi", "describe"]

REFERENCES = "#/components/schemas/{name}"

ANSWER = "The answer; a stream of events where `stream` is true"


@dataclass(frozen=True, slots=True)
class Posted:
    """What is posted to a path. needed: the field that every body has; "": none. answer: what comes back."""

    summary: str
    body: type
    needed: str
    answer: str = ANSWER


POSTED: Mapping[str, Posted] = {
    "/v1/chat/completions": Posted("Chat, streamed or whole", ChatBody, "messages"),
    "/v1/completions": Posted("Text of one prompt or many, streamed or whole", CompletionBody, "prompt"),
    "/v1/explain": Posted("Where a chat would go, and why, without running it", ChatBody, "messages", "Where, and why"),
    "/v1/chat/speculative-completions": Posted("One prompt, one set of figures", ReferenceBody, "prompt"),
    "/v1/events": Posted(
        "What became of answers, where the server governs", EventBody, "", "How many were `accepted`, which `refused`"
    ),
}
READING: Mapping[str, str] = {
    "/v1/models": "What is served",
    "/v1/pools": "Pools, their servers, and how lossless they are known to be",
    "/v1/policy": "What the speculation policy believes and decides",
    "/health": "Alive",
    "/ready": "Able to answer",
}


class OpenApi:
    def __init__(self) -> None:
        self._page = orjson.dumps(describe())

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.respond(200, self._page)


def describe() -> dict[str, Any]:
    bodies = [posted.body for posted in POSTED.values()]
    shapes, components = msgspec.json.schema_components(bodies, ref_template=REFERENCES)
    posted = {
        path: {"post": _posting(path, each, _needing(components, shape, each.needed))}
        for (path, each), shape in zip(POSTED.items(), shapes, strict=True)
    }
    read = {path: {"get": _reading(path, summary)} for path, summary in READING.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "decodeloop", "version": __version__},
        "paths": {**posted, **read},
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"key": []}],
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


def _needing(components: dict[str, Any], shape: dict[str, Any], field: str) -> dict[str, Any]:
    """The types have a default for everything, so that what is missing is told in our own words. field "": nothing is
    needed of every body."""
    if not field:
        return shape
    found = components[shape["$ref"].rpartition("/")[2]]
    found["required"] = sorted({*found.get("required", ()), field})
    return shape


def _posting(path: str, posted: Posted, shape: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": path.strip("/").replace("/", "_").replace("-", "_"),
        "summary": posted.summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": shape}}},
        "responses": {"200": {"description": posted.answer}, **_refusals()},
    }


def _reading(path: str, summary: str) -> dict[str, Any]:
    return {
        "operationId": path.strip("/").replace("/", "_"),
        "summary": summary,
        "responses": {"200": {"description": summary}, **_refusals()},
    }


def _refusals() -> dict[str, Any]:
    content = {"application/json": {"schema": {"$ref": REFERENCES.format(name="Error")}}}
    return {"default": {"description": "An error, in OpenAI's shape", "content": content}}
