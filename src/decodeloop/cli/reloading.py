"""A configuration file that may change while it is served."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Generic, TypeVar

from decodeloop import config
from decodeloop.cli.environment import Environment

__all__ = ["ConfigFile", "read_config"]

log = logging.getLogger(__name__)

T = TypeVar("T")


def read_config(path: Path, section: type[T], environment: Environment) -> T:
    """Raises ConfigError, or OSError for a file that can't be read."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise config.ConfigError(f"{path}: not a text file ({error})") from None
    return config.load(text, section, env=environment.variables, source=str(path))


class ConfigFile(Generic[T]):
    """Tells what a file says once it says something else than when it was asked last."""

    def __init__(self, path: Path, section: type[T], environment: Environment) -> None:
        self._path, self._section, self._environment = path, section, environment
        self._seen = self._stamp()

    def changed(self) -> T | None:
        """None: it is as it was. Raises ConfigError or OSError for what can't be used, once for each change."""
        stamp = self._stamp()
        if stamp == self._seen:
            return None
        self._seen = stamp
        return read_config(self._path, self._section, self._environment)

    def _stamp(self) -> tuple[int, int, int]:
        found = self._path.stat()
        return found.st_mtime_ns, found.st_size, found.st_ino
