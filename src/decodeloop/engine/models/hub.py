"""Models on the Hugging Face hub, through `huggingface_hub` and its cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from decodeloop.engine.models import ModelError
from decodeloop.engine.models.safetensors import weight_files

_WANTED = ("*.json", "*.safetensors", "*.jinja")


def fetch_hub(name: str, *, cache: Path | None = None) -> Path:
    """A hub model's directory ("org/name"), or one of its GGUF files ("org/name/FILE.gguf").

    What is in the hub's cache complete is used as it is, without asking the network. cache: another than the hub's.

    Raises:
        ModelError: huggingface_hub is not installed, or what it said.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ModelError(
            f"{name} is a name on the Hugging Face hub, and huggingface_hub is not installed: "
            "pip install 'decodeloop[hub]'"
        ) from error
    organization, repository, *inner = name.split("/")
    where: dict[str, Any] = {"repo_id": f"{organization}/{repository}", "cache_dir": cache}
    try:
        if inner:
            return _file(huggingface_hub, {**where, "filename": "/".join(inner)})
        return _directory(huggingface_hub, {**where, "allow_patterns": list(_WANTED)})
    except (huggingface_hub.errors.HfHubHTTPError, OSError, ValueError) as error:
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"cannot get {name} from the hub: {error}") from error


def _file(hub: Any, arguments: dict[str, Any]) -> Path:
    try:
        return Path(hub.hf_hub_download(**arguments, local_files_only=True))
    except hub.errors.LocalEntryNotFoundError:
        return Path(hub.hf_hub_download(**arguments))


def _directory(hub: Any, arguments: dict[str, Any]) -> Path:
    try:
        directory = Path(hub.snapshot_download(**arguments, local_files_only=True))
        if (directory / "config.json").is_file() and weight_files(directory):
            return directory
    except (hub.errors.LocalEntryNotFoundError, ModelError):
        pass  # not there, or only in part
    directory = Path(hub.snapshot_download(**arguments))
    if not any(directory.glob("*.safetensors")):
        name = arguments["repo_id"]
        raise ModelError(f"{name}: no safetensors came; if it holds GGUF files, name one: {name}/FILE.gguf")
    weight_files(directory)
    return directory
