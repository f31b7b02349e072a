"""fixed_shape: a token's logits and states are the same bits alone or among others, at once or piece by piece.

Hypothesis invents the schedule: which sequences a forward serves, how many tokens of each, rejected drafts behind them,
in which order the tokens stand, where the blocks lie, and whether a prefix was computed by another sequence.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.torch import TorchRunner
from decodeloop.engine.runners.torch.rows import Tiles, steady_tiles
from decodeloop.testing import Run, pack
from tiny import tiny_hf

BLOCK = 4
SEQUENCES, LENGTH, TABLE = 5, 22, 7  # a table has room for rejected drafts beyond the text
SHARED = 2 * BLOCK  # what all texts begin with
LAYERS = (0, 1, 2)


class World:
    """Runners of one model, and the bits of each text fed alone, token by token."""

    def __init__(self, family, path, dtype, **config):
        checkpoint = open_checkpoint(tiny_hf(family, path, **config))
        options = RunnerOptions(threads=1, block_tokens=BLOCK, fixed_shape=True, dtype=dtype)
        self.runner = TorchRunner(checkpoint, options)
        self.runner.allocate_kv(SEQUENCES * TABLE)
        texts = np.random.default_rng(3).integers(0, 64, (SEQUENCES, LENGTH))
        texts[:, :SHARED] = texts[0, :SHARED]
        self.texts = texts.tolist()
        self.bits = [self._alone(text) for text in self.texts]

    def _alone(self, text):
        return [self.forward([Run([token], at, range(TABLE))])[0] for at, token in enumerate(text)]

    def forward(self, runs, order=None):
        """[T] bytes of logits and states, in the runs' order."""
        batch = replace(pack(runs, order), hidden_layers=LAYERS)
        answer = self.runner.forward(batch)
        rows = np.concatenate([answer.logits, *(answer.hidden[layer] for layer in LAYERS)], axis=1)
        placed = np.empty_like(rows)
        placed[np.arange(len(rows)) if order is None else order] = rows
        return [row.tobytes() for row in placed]


@pytest.fixture(
    scope="module",
    params=[
        ("llama", "float32", {}),
        ("qwen3", "int4", {}),
        ("gemma3", "float32", {"sliding_window": 6}),
        ("gemma3", "bfloat16", {"num_key_value_heads": 1, "hidden_size": 48, "intermediate_size": 88}),
    ],
    ids=lambda param: "-".join(param[:2]),
)
def world(request, tmp_path_factory):
    family, dtype, config = request.param
    return World(family, tmp_path_factory.mktemp(family), dtype, **config)


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.data())
def test_every_packing_gives_the_same_bits(world, data):
    blocks = iter(data.draw(st.permutations(range(SEQUENCES * TABLE)), label="blocks"))
    tables = [[next(blocks) for _ in range(TABLE)] for _ in range(SEQUENCES)]
    done = [0] * SEQUENCES
    if data.draw(st.booleans(), label="the others begin on the first one's prefix"):
        assert world.forward([Run(world.texts[0][:SHARED], 0, tables[0])]) == world.bits[0][:SHARED]
        for table in tables[1:]:
            table[:2] = tables[0][:2]
        done = [SHARED] * SEQUENCES
    while min(done) < LENGTH:
        sizes = data.draw(st.lists(st.integers(0, 9), min_size=SEQUENCES, max_size=SEQUENCES).filter(any))
        drafts = data.draw(st.lists(st.integers(0, 3), min_size=SEQUENCES, max_size=SEQUENCES))
        runs, expected = [], []
        for i, (size, draft) in enumerate(zip(sizes, drafts, strict=True)):
            start, end = done[i], min(done[i] + size, LENGTH)
            if start == end:
                continue
            rejected = [63 - token for token in world.texts[i][:draft]]
            runs.append(Run(world.texts[i][start:end] + rejected, start, tables[i]))
            expected += world.bits[i][start:end] + [None] * draft
            done[i] = end
        if not runs:
            continue
        order = data.draw(st.permutations(range(len(expected))), label="order")
        got = world.forward(runs, np.asarray(order))
        assert [bits for bits, known in zip(got, expected, strict=True) if known] == [b for b in expected if b]


def test_the_ordinary_mode_would_not_pass(tmp_path):
    """The control: were it so, the test above might see nothing."""
    ordinary = TorchRunner(open_checkpoint(tiny_hf("llama", tmp_path)), RunnerOptions(threads=1, block_tokens=BLOCK))
    ordinary.allocate_kv(TABLE)
    text = np.random.default_rng(3).integers(0, 64, LENGTH)
    whole = ordinary.forward(pack([Run(text, 0, range(TABLE))])).logits
    steps = [ordinary.forward(pack([Run([token], at, range(TABLE))])).logits[0] for at, token in enumerate(text)]
    assert not np.array_equal(whole, np.stack(steps))


def test_rows_that_depend_on_their_place_are_run_one_by_one():
    """As a library might do it: the last rows of a tile by another kernel."""
    draw = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    assert steady_tiles(lambda x: x.exp(), draw).rows == 16
    assert steady_tiles(lambda x: torch.cat([x[:12].exp(), x[12:].exp() * 1.0000001]), draw).rows == 1


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("count", [1, 16, 17, 40])
def test_tiles_are_all_of_one_shape(rows, count):
    seen = set()

    def function(x, y):
        seen.add((x.shape, y.shape))
        return x.sum(1, keepdim=True) + y

    x, y = torch.randn(count, 3), torch.randn(count, 1)
    assert torch.equal(Tiles(rows).map(function, x, y), x.sum(1, keepdim=True) + y)
    assert seen == {(torch.Size([rows, 3]), torch.Size([rows, 1]))}
