"""Who is asking."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Protocol

from decodeloop.types import Identity, RequestRefused

__all__ = ["Authenticator", "OpenDoor", "StaticKeys", "authenticator_for"]


class Authenticator(Protocol):
    def identify(self, authorization: str | None) -> Identity:
        """The sender of an `Authorization` header. Raises RequestRefused with 401."""
        ...


class OpenDoor:
    """Everyone is the local user."""

    def identify(self, authorization: str | None) -> Identity:
        return Identity("local")


class StaticKeys:
    """A bearer of any of the configured keys is the local user; the key's id is in the identity."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def identify(self, authorization: str | None) -> Identity:
        scheme, _, key = (authorization or "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise _unauthorized("no API key was given: send it as `Authorization: Bearer KEY`")
        given = _digest(key.strip())
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]  # all, whichever matches
        if not any(matches):
            raise _unauthorized("this API key is not valid")
        return Identity("local", key_id=given.hex()[:12])


def authenticator_for(keys: Sequence[str]) -> Authenticator:
    return StaticKeys(keys) if keys else OpenDoor()


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def _unauthorized(message: str) -> RequestRefused:
    return RequestRefused(message, status=401, code="invalid_api_key")
