"""A tiny real model (random weights) behind the whole product."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from decodeloop.engine.models.sources import open_checkpoint
from stack import stack
from tiny import tiny_hf


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return open_checkpoint(tiny_hf("llama", tmp_path_factory.mktemp("tiny"), vocab_size=320))


@pytest.fixture(scope="session")
def served(tiny):
    """Speculating: n-gram and suffix drafts of 4."""
    with stack(tiny, runner="torch", drafters=("ngram", "suffix"), max_context=256, kv_memory_mb=16) as running:
        yield running


@pytest.fixture(scope="session")
def plain(tiny):
    with stack(tiny, runner="torch", policy="off", max_context=256, kv_memory_mb=16) as running:
        yield running
