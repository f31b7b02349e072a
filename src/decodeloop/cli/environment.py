"""The only place that reads the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Environment:
    """cache: where models and measurements are kept. variables: for ${NAME} references in configuration files."""

    cache: Path
    variables: Mapping[str, str]

    @property
    def models(self) -> Path:
        return self.cache / "models"


def read_environment() -> Environment:
    """DECODELOOP_CACHE, else XDG_CACHE_HOME/decodeloop, else ~/.cache/decodeloop."""
    own = os.environ.get("DECODELOOP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Environment(Path(own) if own else Path(base) / "decodeloop", dict(os.environ))
