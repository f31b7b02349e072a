"""What the cases share: the engine's test rig, and tiny real models behind real runners."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from real import RUNNERS, Tiny
from tiny import tiny_hf

SIZE = {"vocab_size": 320, "max_position_embeddings": 5120}


@pytest.fixture(scope="session")
def models(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def tiny_path(models) -> Path:
    return tiny_hf("llama", models / "tiny", **SIZE)


@pytest.fixture(scope="session", params=RUNNERS)
def tiny(request, tiny_path) -> Tiny:
    """The cases are the same on every runner."""
    return Tiny.open(tiny_path, **RUNNERS[request.param])


@pytest.fixture(scope="session")
def stranger(models) -> str:
    """Where a second model of the same tokenizer is, whose weights have nothing to do with the first one's."""
    return str(tiny_hf("llama", models / "stranger", seed=7, layers=1, **SIZE))


@pytest.fixture(scope="session")
def near(models) -> str:
    """Where a second model is that mostly says what the first one says: the first one's weights, a little off."""
    from safetensors.torch import load_file, save_file

    path = tiny_hf("llama", models / "near", **SIZE)
    weights = load_file(path / "model.safetensors")
    save_file({name: tensor * 1.02 for name, tensor in weights.items()}, path / "model.safetensors", {"format": "pt"})
    return str(path)
