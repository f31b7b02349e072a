"""A tiny real model, short prompts for it, and a journal of answers."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "engine"))

from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.evaluation.lossless.answers import Journal
from tiny import tiny_hf

TEXTS = tuple(f"{i} {text}" for i in range(2) for text in ("the cat sat", "add(a, b):", "one two one two", "list [1]"))
TEXTS += ("mat on sat", "a b c", "name value name", "on the mat on", "return b", "def def")


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    return open_checkpoint(tiny_hf("llama", tmp_path_factory.mktemp("tiny"), vocab_size=320))


@pytest.fixture(scope="session")
def workload(tmp_path_factory):
    path = tmp_path_factory.mktemp("workload") / "short.jsonl"
    path.write_text("".join(json.dumps({"id": str(i), "prompt": text}) + "\n" for i, text in enumerate(TEXTS)))
    return path


@pytest.fixture
def journal(tmp_path):
    opened = Journal(tmp_path / "journal.jsonl")
    yield opened
    opened.close()
