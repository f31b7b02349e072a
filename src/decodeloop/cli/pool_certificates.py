"""The certificates that pools name: read and checked once, before anything is served."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from decodeloop import config
from decodeloop.cli.signing import verify
from decodeloop.gateway.pools import PoolSettings
from decodeloop.governance.certificate import Certificate, InvalidCertificate, faults, read


def read_certificates(pools: Mapping[str, PoolSettings]) -> dict[str, Certificate]:
    """By pool. One that has expired is read all the same: its pool is served, and said not to be certified.

    Raises:
        ConfigError: a file that is no certificate, or whose signature is wrong.
    """
    return {name: _read(name, Path(pool.certificate)) for name, pool in pools.items() if pool.certificate is not None}


def _read(pool: str, path: Path) -> Certificate:
    try:
        certificate, data = read(path.read_bytes())
        issued = datetime.fromisoformat(certificate.issued_at).astimezone(UTC)
        wrong = faults(certificate, data, now=issued, verify=verify)
    except (OSError, InvalidCertificate, ValueError, RuntimeError) as error:
        raise config.ConfigError(f"pool {pool}: certificate {path}: {error}") from None
    if wrong:
        raise config.ConfigError(f"pool {pool}: certificate {path}: {'; '.join(wrong)}")
    return certificate
