"""The only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """cache: where models and measurements are kept. signing_key: what certificates are signed with.

    variables: for ${NAME} references in configuration files.
    """

    cache: Path
    variables: Mapping[str, str]
    signing_key: Path = Path("signing.pem")

    @property
    def models(self) -> Path:
        return self.cache / "models"


def read_environment() -> Environment:
    """Cache: DECODELOOP_CACHE, else XDG_CACHE_HOME/decodeloop, else ~/.cache/decodeloop.

    Signing key: DECODELOOP_SIGNING_KEY, else XDG_CONFIG_HOME/decodeloop/signing.pem, else under ~/.config.
    """
    own = os.environ.get("DECODELOOP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    key = os.environ.get("DECODELOOP_SIGNING_KEY")
    settings = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Environment(
        cache=Path(own) if own else Path(base) / "decodeloop",
        variables=dict(os.environ),
        signing_key=Path(key) if key else Path(settings) / "decodeloop" / "signing.pem",
    )
