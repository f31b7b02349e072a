"""Errors as OpenAI's clients expect them: one body, all four keys, on every route."""

from __future__ import annotations

import orjson

from decodeloop.types import RequestRefused

__all__ = ["error_body", "error_object", "internal_error", "shutting_down"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "conflict_error",
    429: "rate_limit_error",
    504: "timeout_error",
}


def error_object(refused: RequestRefused) -> dict[str, object]:
    """The error as a JSON value: message, type (by status), param and code."""
    fallback = "server_error" if refused.status >= 500 else "invalid_request_error"
    return {
        "error": {
            "message": refused.message,
            "type": _TYPES.get(refused.status, fallback),
            "param": refused.param,
            "code": refused.code,
        }
    }


def error_body(refused: RequestRefused) -> bytes:
    return orjson.dumps(error_object(refused))


def internal_error(request_id: str) -> RequestRefused:
    """What a client is told of a fault that is ours; the log has the rest."""
    return RequestRefused(f"the server failed to process this request (request id {request_id})", status=500)


def shutting_down() -> RequestRefused:
    return RequestRefused("the server is shutting down", status=503, code="shutting_down")
