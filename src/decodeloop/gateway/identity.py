"""Who is asking."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import Protocol

from decodeloop.gateway.jwt import JwtVerifier
from decodeloop.governance.directory import Directory
from decodeloop.governance.keys import VirtualKey, digest_of, id_of
from decodeloop.governance.scope import LEVELS
from decodeloop.governance.settings import ProxySettings
from decodeloop.types import Identity, RequestRefused

__all__ = ["Asker", "Authenticator", "KeyRing", "OpenDoor", "StaticKeys", "TrustedProxy", "authenticator_for"]

PROXY_SECRET = "x-decodeloop-proxy"


class Asker(Protocol):
    """An HTTP request, as far as it says who sends it."""

    @property
    def peer(self) -> str:
        """The address at the other end of its connection; "" where there is none."""
        ...

    def sole(self, name: str) -> str | None:
        """A header that may come once. Raises RequestRefused with 400 where it comes twice."""
        ...


class Authenticator(Protocol):
    def identify(self, asker: Asker) -> Identity:
        """Raises RequestRefused with 401."""
        ...


class OpenDoor:
    """Everyone is the local user."""

    def identify(self, asker: Asker) -> Identity:
        return Identity("local")


class StaticKeys:
    """A bearer of any of the configured keys is the local user; the key's id is in the identity."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [digest_of(key) for key in keys]

    def identify(self, asker: Asker) -> Identity:
        given = digest_of(bearer(asker))
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]  # all, whichever matches
        if not any(matches):
            raise _unauthorized("this API key is not valid")
        return Identity("local", key_id=given[:12])


class KeyRing:
    """Virtual keys of the directory as it stands, and tokens of an identity provider. clock: Unix seconds."""

    def __init__(
        self, directory: Callable[[], Directory], clock: Callable[[], float], jwt: JwtVerifier | None = None
    ) -> None:
        self._directory, self._clock, self._jwt = directory, clock, jwt

    def identify(self, asker: Asker) -> Identity:
        token = bearer(asker)
        if self._jwt is not None and token.count(".") == 2:
            identity = self._jwt.identity(token, self._clock())
            if identity is None:
                raise _unauthorized("this token is not valid")
            return identity
        key = _opened(self._directory().keys, token, self._clock())
        if key is None:
            raise _unauthorized("this API key is not valid")
        return key.identity


class TrustedProxy:
    """A proxy that has authenticated the caller and names it in headers; everyone else is asked as before.

    The headers mean nothing from any other address, or without the proxy's secret.
    """

    def __init__(self, settings: ProxySettings, others: Authenticator) -> None:
        self._networks = [ip_network(address, strict=False) for address in settings.addresses]
        self._secret, self._others = digest_of(settings.secret), others

    def identify(self, asker: Asker) -> Identity:
        secret = asker.sole(PROXY_SECRET)
        if secret is None or not self._is_near(asker.peer):
            return self._others.identify(asker)
        if not hmac.compare_digest(digest_of(secret), self._secret):
            raise _unauthorized("the proxy's secret is not valid")
        named = {level: (asker.sole(f"x-decodeloop-{level}") or "").strip() for level in LEVELS}
        if not named["organization"]:
            raise _unauthorized("the proxy names no organization")
        return Identity(**named, key_id="proxy")

    def _is_near(self, peer: str) -> bool:
        try:
            address = ip_address(peer)
        except ValueError:
            return False
        return any(address in network for network in self._networks)


def authenticator_for(keys: Sequence[str]) -> Authenticator:
    return StaticKeys(keys) if keys else OpenDoor()


def bearer(asker: Asker) -> str:
    """Raises RequestRefused with 401 where no bearer token was sent."""
    scheme, _, token = (asker.sole("authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise _unauthorized("no API key was given: send it as `Authorization: Bearer KEY`")
    return token.strip()


def _opened(keys: Mapping[str, VirtualKey], token: str, now_s: float) -> VirtualKey | None:
    """Our own keys say which they are; keys of another make are compared with all."""
    digest = digest_of(token)
    named = keys.get(id_of(token) or "")
    if named is not None:
        return named if named.opens(digest, now_s) else None
    opened = [key for key in keys.values() if key.opens(digest, now_s)]  # all, whichever matches
    return opened[0] if opened else None


def _unauthorized(message: str) -> RequestRefused:
    return RequestRefused(message, status=401, code="invalid_api_key")
