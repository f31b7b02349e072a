"""Ed25519 keys that sign certificates: a PEM file that its owner alone can read, made at first use."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decodeloop.governance.certificate import key_id

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A Signer."""

    path: Path
    _private: Ed25519PrivateKey

    @classmethod
    def open(cls, path: Path) -> SigningKey:
        """The key in `path`, made there if there is none.

        Raises ValueError for a file that others may read or that holds no Ed25519 key, RuntimeError where the package
        `cryptography` isn't installed.
        """
        require_cryptography()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if not path.exists():
            _make(path)
        if path.stat().st_mode & 0o077:
            raise ValueError(f"{path}: others may read this signing key; chmod 600 it, or better: make a new one")
        try:
            key = load_pem_private_key(path.read_bytes(), password=None)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}: no Ed25519 key in PEM ({error})") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path}: not an Ed25519 key")
        return cls(path, key)

    @property
    def public_key(self) -> bytes:
        return self._private.public_key().public_bytes_raw()

    @property
    def key_id(self) -> str:
        return key_id(self.public_key)

    def sign(self, message: bytes) -> bytes:
        return self._private.sign(message)


def verify(public_key: bytes, message: bytes, signature: bytes) -> bool:
    """Whether `signature` is the key's, over `message`. Raises RuntimeError without `cryptography`."""
    require_cryptography()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def require_cryptography() -> None:
    """Raises RuntimeError that says what to install."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise RuntimeError("certificates need the package cryptography: pip install 'decodeloop[certify]'") from None


def _make(path: Path) -> None:
    """0600 from its first byte on; whole or not at all, and never over another."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    text = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(text)
