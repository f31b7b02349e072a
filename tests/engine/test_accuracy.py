"""Fast and wrong fails: the default model on the native runner stays near float32, and a small fault in its weights
takes it out of bounds. `benchmarks/accuracy.py` measures the same over 200 prompts."""

import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from accuracy import measure, of_runner, texts_of
from accuracy_bounds import BOUNDS

from compiler import needs_compiled
from decodeloop.engine.models.sources import open_checkpoint

pytestmark = pytest.mark.model
PROMPTS, TOKENS = 8, 40
BLOCK = 20  # bytes of a Q4_1 block of 32: scale and minimum in half precision, nibbles


@dataclass(frozen=True)
class FaultyWeight:
    """A weight whose Q4_1 blocks are read wrongly in one way."""

    weight: object
    fault: object

    @property
    def shape(self):
        return self.weight.shape

    @property
    def format(self):
        return self.weight.format

    def blocks(self):
        return self.fault(self.weight.blocks().copy())

    def float32(self):
        raise AssertionError("the native runner repacks blocks as they are")


@dataclass(frozen=True)
class FaultyCheckpoint:
    checkpoint: object
    part: str
    fault: object

    def __getattr__(self, name):
        return getattr(self.checkpoint, name)

    def weight(self, name):
        weight = self.checkpoint.weight(name)
        return FaultyWeight(weight, self.fault) if name.endswith(f".{self.part}") else weight


def scale_off(blocks):
    """Each block's scale 2 % too large."""
    scales = blocks.reshape(len(blocks), -1, BLOCK)[:, :, :2].copy().view(np.float16)
    blocks.reshape(len(blocks), -1, BLOCK)[:, :, :2] = (scales * np.float16(1.02)).view(np.uint8)
    return blocks


def blocks_swapped(blocks):
    """The first two blocks of every row have changed places."""
    cells = blocks.reshape(len(blocks), -1, BLOCK)
    cells[:, [0, 1]] = cells[:, [1, 0]]
    return blocks


FAULTS = {
    "scale off": ("down", scale_off),
    "blocks swapped": ("down", blocks_swapped),
}


@pytest.fixture(scope="module")
def found(default_model_path):
    """What every format and every fault measures."""
    needs_compiled()
    checkpoint = open_checkpoint(default_model_path)
    others = {name: of_runner("native", checkpoint, dtype, TOKENS) for name, (dtype, _) in BOUNDS.items()}
    others |= {
        name: of_runner("native", FaultyCheckpoint(checkpoint, part, fault), "auto", TOKENS)
        for name, (part, fault) in FAULTS.items()
    }
    return measure(of_runner("torch", checkpoint, "float32", TOKENS), others, texts_of(checkpoint, PROMPTS, TOKENS))


@pytest.mark.parametrize("name", BOUNDS)
def test_a_format_stays_near_the_reference(found, name):
    assert BOUNDS[name][1].violations(found[name]) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_small_fault_is_out_of_bounds(found, fault):
    assert BOUNDS["int4"][1].violations(found[fault]) != []
