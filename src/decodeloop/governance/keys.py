"""Virtual keys: high-entropy secrets, of which only a digest is kept."""

from __future__ import annotations

import base64
import hashlib
import hmac
from dataclasses import dataclass

from decodeloop.types import Identity

__all__ = ["SECRET_BYTES", "VirtualKey", "compose", "digest_of", "id_of"]

SECRET_BYTES = 32
ID_LENGTH = 12
PREFIX = "dl-"


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualKey:
    """digest: SHA-256 of the whole key, in hexadecimal; a secret of 256 random bits needs no slow hash.

    until_s: Unix time.
    """

    id: str
    digest: str
    identity: Identity = Identity()
    until_s: float | None = None
    enabled: bool = True

    def __post_init__(self) -> None:
        if len(self.digest) != 64 or set(self.digest) - set("0123456789abcdef"):
            raise ValueError(f"key {self.id}: the digest must be SHA-256 in 64 hexadecimal digits")

    def opens(self, digest: str, now_s: float) -> bool:
        """Whether the key of that digest is this one, and good now. Takes as long for any wrong digest."""
        same = hmac.compare_digest(self.digest, digest)
        return same and self.enabled and (self.until_s is None or now_s < self.until_s)


def compose(id_bytes: bytes, secret: bytes) -> str:
    """The text of a new key: `dl-` id `-` secret. secret: SECRET_BYTES from a cryptographic source."""
    if len(secret) < SECRET_BYTES:
        raise ValueError(f"a key needs {SECRET_BYTES} secret bytes, got {len(secret)}")
    id = id_bytes.hex()[:ID_LENGTH]
    return f"{PREFIX}{id}-{base64.urlsafe_b64encode(secret).decode().rstrip('=')}"


def id_of(key: str) -> str | None:
    """The public part of a key that `compose` made; None: it is of another make."""
    if not key.startswith(PREFIX):
        return None
    id, dash, secret = key[len(PREFIX) :].partition("-")
    return id if dash and secret and len(id) == ID_LENGTH else None


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
