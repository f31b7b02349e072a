"""The native runner's promise: a token's logits and states are the same bits, whatever is in the batch beside it.

Seeds decide how texts are cut into forwards, which go together, in what order, where their blocks lie, which of them
start on another's prefix, which are dropped and computed anew, and what is drafted behind them in chains and trees.
"""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from decodeloop.engine import kernels
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.native import NativeRunner
from decodeloop.testing import Run, pack
from invented import InventedCheckpoint, invented_config

BLOCK, SEQUENCES, LENGTH = 16, 4, 70
TABLE = 6  # blocks: room for drafts behind the text
SHARED = 2 * BLOCK  # what all texts begin with
LAYERS = (0, 1, 2)
FORMS = [
    ("llama", "fp32", {}),
    ("llama", "int4", {"hidden_size": 128, "ffn_size": 96}),
    ("qwen3", "bf16", {}),
    ("gemma3", "bf16", {"sliding_window": 21}),
    ("gemma3", "int8", {"hidden_size": 128, "sliding_window": 16}),
]


class World:
    """A runner, and the bits of each text fed alone, token by token."""

    def __init__(self, family, dtype, config, isa):
        checkpoint = InventedCheckpoint(invented_config(family, **config))
        self.runner = NativeRunner(checkpoint, RunnerOptions(threads=2, dtype=dtype, options={"isa": isa}))
        self.runner.allocate_kv(SEQUENCES * TABLE)
        texts = np.random.default_rng(3).integers(0, 71, (SEQUENCES, LENGTH))
        texts[:, :SHARED] = texts[0, :SHARED]
        self.texts = texts.tolist()
        self.bits = [self._alone(text) for text in self.texts]

    def _alone(self, text):
        return [self.forward([Run([token], at, range(TABLE))])[0] for at, token in enumerate(text)]

    def forward(self, runs, order=None, **fields):
        """[T] bytes of logits and states, in the runs' order."""
        answer = self.runner.forward(replace(pack(runs, order), hidden_layers=LAYERS, **fields))
        rows = np.concatenate([answer.logits, *(answer.hidden[layer] for layer in LAYERS)], axis=1)
        placed = np.empty_like(rows)
        placed[np.arange(len(rows)) if order is None else order] = rows
        return [row.tobytes() for row in placed]


@pytest.fixture(
    scope="module",
    params=[(*form, isa) for isa in kernels.load().kernels() for form in FORMS],
    ids=lambda param: f"{param[0]}-{param[1]}-{param[3]}",
)
def world(request):
    return World(*request.param)


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_every_packing_gives_the_same_bits(world, seed):
    rng = np.random.default_rng(seed)
    tables = rng.permutation(SEQUENCES * TABLE).reshape(SEQUENCES, TABLE)
    done = [0] * SEQUENCES
    shares = rng.random() < 0.5
    if shares:
        assert world.forward([Run(world.texts[0][:SHARED], 0, tables[0])]) == world.bits[0][:SHARED]
        tables[:, :2] = tables[0, :2]
        done = [SHARED] * SEQUENCES
    while min(done) < LENGTH:
        waiting = [sequence for sequence in range(SEQUENCES) if done[sequence] < LENGTH]
        served = rng.permutation(waiting)[: rng.integers(1, len(waiting) + 1)]
        runs, sizes = [], []
        for sequence in served:
            start = done[sequence]
            sizes.append(min(LENGTH - start, int(rng.choice([1, 2, 3, 5, 8, 16, 31, 64]))))
            rejected = rng.integers(0, 71, rng.integers(0, 6)).tolist()
            runs.append(Run(world.texts[sequence][start : start + sizes[-1]] + rejected, start, tables[sequence]))
            preempted = rng.random() < 0.1
            done[sequence] = SHARED * shares if preempted else start + sizes[-1]
        count = sum(len(run.tokens) for run in runs)
        got = world.forward(runs, rng.permutation(count) if rng.random() < 0.5 else None)
        for sequence, run, size in zip(served, runs, sizes, strict=True):
            assert got[:size] == world.bits[sequence][run.start : run.start + size]
            got = got[len(run.tokens) :]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(st.integers(0, 2**32 - 1))
def test_a_tree_s_path_has_the_bits_of_its_chain(world, seed):
    """A random tree behind a random prefix, one of its paths being the text; then that path is moved into place."""
    rng = np.random.default_rng(seed)
    text, bits = world.texts[1], world.bits[1]
    start = int(rng.integers(1, LENGTH - 8))
    table = rng.permutation(SEQUENCES * TABLE)[:TABLE]
    world.forward([Run(text[:start], 0, table)])
    parents, path, tokens, positions = [], [], [], []
    for index in range(rng.integers(1, 15)):
        on_path = len(path) < 6 and rng.random() < 0.5
        parent = (path[-1] if path else -1) if on_path else int(rng.integers(-1, index))
        positions.append(start if parent < 0 else positions[parent] + 1)
        parents.append(parent)
        tokens.append(text[positions[-1]] if on_path else int(rng.integers(0, 71)))
        if on_path:
            path.append(index)
    room = np.arange(max(positions), TABLE * BLOCK)  # an entry never lies below its token's position
    entries = rng.permutation(room)[: len(tokens)]
    got = world.forward(
        [Run(tokens, start, table)],
        positions=np.asarray(positions, np.int32),
        kv_positions=entries.astype(np.int32),
        parents=np.asarray(parents, np.int32),
    )
    assert [got[index] for index in path] == bits[start : start + len(path)]
    if path:
        moved = np.arange(start, start + len(path))
        world.runner.copy_kv(_physical(table, entries[path]), _physical(table, moved))
        after = start + len(path)
        assert world.forward([Run(text[after : after + 1], after, table)]) == bits[after : after + 1]


def _physical(table, entries):
    return (table[entries // BLOCK] * BLOCK + entries % BLOCK).astype(np.int32)


def test_a_broken_text_does_not_reach_its_neighbours():
    """NaN in one sequence's cache, reused blocks included, changes no bit of another's."""
    checkpoint = InventedCheckpoint(invented_config("llama"))
    poisoned = checkpoint.weights["embed"].values
    poisoned[70] = np.nan
    runner = NativeRunner(checkpoint, RunnerOptions(threads=1))
    runner.allocate_kv(4)
    clean = list(range(33))
    alone = runner.forward(pack([Run(clean, 0, [0, 1, 2])])).logits.copy()
    broken = runner.forward(pack([Run([70] * 47, 0, [0, 1, 2])])).logits
    assert np.isnan(broken).all()
    again = runner.forward(pack([Run(clean, 0, [0, 1, 2]), Run([70] * 5, 0, [3])])).logits
    assert np.array_equal(again[:33], alone)
    assert np.isnan(again[33:]).all()
