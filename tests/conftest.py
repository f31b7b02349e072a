"""What tests of several parts share."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from decodeloop.cli.environment import read_environment
from decodeloop.engine.models.sources import DEFAULT_MODEL, resolve

settings.register_profile("decodeloop", deadline=None)  # a busy machine is no fault
settings.load_profile("decodeloop")


@pytest.fixture(scope="session")
def default_model_path() -> Path:
    """The default model's file, fetched once into the user's cache. Its users are marked `model`."""
    return resolve(DEFAULT_MODEL, read_environment().models)
