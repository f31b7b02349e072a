"""Certificates of losslessness: what was certified, of exactly which serving regime, by whom, until when.

Signing and the clock are passed in. What is signed and hashed is canonical JSON: keys sorted, no spaces, ASCII, no NaN.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any, Protocol

SCHEMA = "decodeloop.certificate/1"
DAYS = 30


class InvalidCertificate(ValueError):
    """Not a certificate at all."""


class Signer(Protocol):
    @property
    def public_key(self) -> bytes: ...

    def sign(self, message: bytes) -> bytes: ...


class Verify(Protocol):
    def __call__(self, public_key: bytes, message: bytes, signature: bytes) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """Everything that a certificate is about; "" is unknown. Hashes are SHA-256, in hex.

    drafter: their names, preferred first. weight_format: as the runner holds the weights. numerics: whether a token's
    logits depend on what else is in the batch ("batch-invariant" or "ordinary"). flags: settings that aren't defaults.
    """

    engine: str
    version: str
    model: str
    model_hash: str = ""
    drafter: str = ""
    drafter_hash: str = ""
    tokenizer_hash: str = ""
    template_hash: str = ""
    weight_format: str = ""
    isa: str = ""
    threads: int = 0
    numerics: str = ""
    verifier: str = ""
    policy: str = ""
    policy_version: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        return digest(asdict(self))

    @classmethod
    def from_json(cls, data: Any) -> Regime:
        """Raises InvalidCertificate for unknown or missing fields."""
        names = {each.name for each in fields(cls)}
        if not isinstance(data, Mapping) or set(data) - names:
            extra = ", ".join(sorted(set(data) - names)) if isinstance(data, Mapping) else type(data).__name__
            raise InvalidCertificate(f"a regime has no {extra}")
        try:
            return cls(**data)
        except TypeError as error:
            raise InvalidCertificate(f"not a regime: {error}") from error


def differences(certified: Regime, running: Regime, *, ignore: Collection[str] = ()) -> tuple[str, ...]:
    """One line a field in which they differ; an unknown field differs from a known one."""
    return tuple(
        f"{name}: certified {theirs!r}, running {ours!r}"
        for name, theirs in asdict(certified).items()
        if name not in ignore and theirs != (ours := getattr(running, name))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """declared: fields of the regime that its owner stated and nobody observed. checks: with power and controls.

    issued_at, expires_at: ISO 8601, UTC. public_key, signature: Ed25519, hex; the signature is over the hash.
    """

    regime: Regime
    declared: tuple[str, ...]
    level: str
    checks: tuple[Mapping[str, Any], ...]
    issued_at: str
    expires_at: str
    public_key: str
    signature: str = ""

    @property
    def hash(self) -> str:
        """Of everything but the signature."""
        return digest(self._body())

    @property
    def key_id(self) -> str:
        return key_id(bytes.fromhex(self.public_key))

    def to_json(self) -> dict[str, Any]:
        hashes = {"hash": self.hash, "regime_hash": self.regime.hash}
        return {**self._body(), **hashes, "signature": self.signature}

    def _body(self) -> dict[str, Any]:
        body = asdict(self)
        del body["signature"]
        return {"schema": SCHEMA, "verdict": "lossless", **body}


def issue(
    regime: Regime,
    *,
    declared: Sequence[str],
    level: str,
    checks: Sequence[Mapping[str, Any]],
    now: datetime,
    signer: Signer,
    days: int = DAYS,
) -> Certificate:
    """A signed certificate. The caller has found the regime lossless."""
    if days < 1:
        raise ValueError(f"a certificate lasts a day at least, not {days}")
    unsigned = Certificate(
        regime=regime,
        declared=tuple(declared),
        level=level,
        checks=tuple(checks),
        issued_at=_stamp(now),
        expires_at=_stamp(now + timedelta(days=days)),
        public_key=signer.public_key.hex(),
    )
    return replace(unsigned, signature=signer.sign(unsigned.hash.encode()).hex())


def read(text: str | bytes) -> tuple[Certificate, Mapping[str, Any]]:
    """The certificate, and the JSON as it stands (whose hashes are checked by `faults`).

    Raises InvalidCertificate.
    """
    try:
        data = json.loads(text)
        if data["schema"] != SCHEMA:
            raise InvalidCertificate(f"schema {data['schema']!r} is not {SCHEMA!r}")
        certificate = Certificate(
            regime=Regime.from_json(data["regime"]),
            declared=tuple(data["declared"]),
            level=str(data["level"]),
            checks=tuple(data["checks"]),
            issued_at=str(data["issued_at"]),
            expires_at=str(data["expires_at"]),
            public_key=str(data["public_key"]),
            signature=str(data["signature"]),
        )
        bytes.fromhex(certificate.public_key + certificate.signature)
        datetime.fromisoformat(certificate.expires_at)
    except InvalidCertificate:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCertificate(f"not a certificate: {error!r}") from error
    return certificate, data


def faults(
    certificate: Certificate,
    data: Mapping[str, Any],
    *,
    now: datetime,
    verify: Verify,
    issuers: Collection[str] = (),
) -> tuple[str, ...]:
    """Why it isn't to be believed; empty when it is.

    issuers: key ids of which one must have signed; none: any key will do.
    """
    found = []
    if data != json.loads(canonical_json(certificate.to_json())):
        found.append("the content was changed: it doesn't have the hash that it states")
    signature = bytes.fromhex(certificate.signature)
    if not verify(bytes.fromhex(certificate.public_key), certificate.hash.encode(), signature):
        found.append("the signature is not that of the key it names")
    if issuers and certificate.key_id not in issuers:
        found.append(f"signed by key {certificate.key_id}, not by {', '.join(sorted(issuers))}")
    if now >= datetime.fromisoformat(certificate.expires_at):
        found.append(f"expired at {certificate.expires_at}")
    return tuple(found)


def key_id(public_key: bytes) -> str:
    """A short name of a key."""
    return sha256(public_key).hexdigest()[:16]


def digest(value: Any) -> str:
    return sha256(canonical_json(value)).hexdigest()


def canonical_json(value: Any) -> bytes:
    """Raises ValueError for NaN and infinities, which JSON lacks."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _stamp(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds")
