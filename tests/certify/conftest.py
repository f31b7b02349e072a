"""A tiny real model, and short prompts for it."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from decodeloop.engine.models.sources import open_checkpoint
from tiny import tiny_hf

TEXTS = ("the cat sat on the mat", "add(a, b): return", "one two one two one", "list [1, 2, 3]", "mat on sat", "a b c")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return open_checkpoint(tiny_hf("llama", tmp_path_factory.mktemp("tiny"), vocab_size=320))


@pytest.fixture(scope="session")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("workload") / "short.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "prompt": text}) + "\n" for i, text in enumerate(TEXTS)))
    return path
