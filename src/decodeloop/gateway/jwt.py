"""JSON Web Tokens of an identity provider: who is behind one, and for whom it acts."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from typing import Any

from decodeloop.governance.settings import JwtSettings
from decodeloop.types import Identity

__all__ = ["JwtVerifier"]

REMEMBERED = 4096  # verified tokens: a signature costs more than all the rest of a request
LEEWAY_S = 30.0
MAX_TOKEN_BYTES = 16 * 2**10


class JwtVerifier:
    """Needs the package `joserfc`.

    Raises:
        ValueError: the keys are no JWK set, or hold none for the algorithms.
        ImportError: without the package.
    """

    def __init__(self, settings: JwtSettings) -> None:
        try:
            from joserfc import jwk, jwt
        except ImportError:
            raise ImportError("tokens need the package joserfc: pip install 'decodeloop[jwt]'") from None
        self._settings, self._jwt = settings, jwt
        try:
            value = json.loads(settings.keys)
            self._keys = jwk.KeySet.import_key_set(value if "keys" in value else {"keys": [value]})
        except Exception as error:
            raise ValueError(f"jwt.keys is no JWK set: {error}") from None
        self._verified: OrderedDict[bytes, tuple[Identity, float]] = OrderedDict()

    def identity(self, token: str, now_s: float) -> Identity | None:
        """None: not signed by these keys for us, or not good at `now_s` (Unix time)."""
        if len(token) > MAX_TOKEN_BYTES:
            return None
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._verified.get(digest)
        if known is None:
            known = self._checked(token, now_s)
            if known is None:
                return None
            self._verified[digest] = known
            if len(self._verified) > REMEMBERED:
                self._verified.popitem(last=False)
        identity, until_s = known
        if now_s >= until_s + LEEWAY_S:
            del self._verified[digest]
            return None
        return identity

    def _checked(self, token: str, now_s: float) -> tuple[Identity, float] | None:
        settings = self._settings
        try:
            claims = self._jwt.decode(token, self._keys, algorithms=list(settings.algorithms)).claims
        except Exception:  # whatever a stranger's bytes do to a parser, they are no valid token
            return None
        audience = claims.get("aud")
        until_s, from_s = claims.get("exp"), claims.get("nbf", 0)
        if not isinstance(until_s, int | float) or not isinstance(from_s, int | float):
            return None
        good = (
            claims.get("iss") == settings.issuer
            and settings.audience in (audience if isinstance(audience, list) else [audience])
            and from_s - LEEWAY_S <= now_s
        )
        identity = _identity(claims, settings) if good else None
        return None if identity is None else (identity, float(until_s))


def _identity(claims: dict[str, Any], settings: JwtSettings) -> Identity | None:
    organization, user = claims.get(settings.organization_claim), claims.get("sub")
    actor = claims.get("act")
    agent = actor.get("sub", "") if isinstance(actor, dict) else ""
    scopes = claims.get("scope", "")
    named = scopes.split() if isinstance(scopes, str) else []
    prefix = settings.capability_prefix
    capability = next((each.removeprefix(prefix) for each in named if each.startswith(prefix)), "")
    if not all(isinstance(each, str) for each in (organization, user, agent)) or not organization or not user:
        return None
    return Identity(str(organization), str(user), str(agent), capability, f"jwt:{user}")
