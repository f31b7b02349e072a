"""Where a model comes from: what a user names, as a checkpoint."""

from __future__ import annotations

from pathlib import Path

from decodeloop.engine.models import Checkpoint, ModelError
from decodeloop.engine.models.gguf import GgufCheckpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Open what is at `path`: a GGUF file.

    Raises:
        ModelError: nothing there, or nothing that can be read.
    """
    if not path.exists():
        raise ModelError(f"{path}: no such file or directory")
    return GgufCheckpoint(path)
