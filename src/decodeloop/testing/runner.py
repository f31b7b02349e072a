"""What every runner must hold to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.speculation.drawing import DrawsCoupled
from decodeloop.speculation.forward import Batch, Runner, block_tables
from decodeloop.testing.drawing import check_draws
from decodeloop.types import FloatArray

BLOCKS = 24


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence. start: the position of the first. blocks: the sequence's block table."""

    tokens: Sequence[int]
    start: int
    blocks: Sequence[int]


def pack(runs: Sequence[Run], order: Sequence[int] | None = None) -> Batch:
    """A batch of all the runs' tokens, all their logits wanted. order: a permutation of the tokens; None: as given."""
    tokens = np.concatenate([run.tokens for run in runs]).astype(np.int32)
    positions = np.concatenate([run.start + np.arange(len(run.tokens)) for run in runs]).astype(np.int32)
    slots = np.repeat(np.arange(len(runs)), [len(run.tokens) for run in runs]).astype(np.int32)
    shuffle = np.arange(len(tokens)) if order is None else np.asarray(order)
    return Batch(
        tokens=tokens[shuffle],
        positions=positions[shuffle],
        slots=slots[shuffle],
        block_tables=block_tables([run.blocks for run in runs]),
        logit_rows=np.arange(len(tokens), dtype=np.int32),
    )


def check_runner(runner: Runner, tolerance: float = 1e-4) -> None:
    """Raises AssertionError, saying what was broken. Drops the runner's KV.

    However a text is cut into forwards, whatever stands beside it, wherever its KV lies: its logits stay within
    `tolerance`, bit for bit the same when the runner says that it is batch_invariant. One that draws tokens itself
    (`DrawsCoupled`) draws the reference's.
    """
    bench = _Bench(runner, tolerance)
    bench.runner.allocate_kv(BLOCKS)
    for check in _CHECKS:
        check(bench)
    if runner.info.trees:
        _trees_see_their_paths(bench)
    if isinstance(runner, DrawsCoupled):
        check_draws(runner, runner.info.vocab_size)


class _Bench:
    """A runner, and a text whose logits alone and at once are the measure of all others."""

    def __init__(self, runner: Runner, tolerance: float) -> None:
        self.runner, self._tolerance = runner, tolerance
        info = runner.info
        assert min(info.vocab_size, info.hidden_size, info.layers, info.block_tokens, info.kv_block_bytes) > 0
        assert info.max_context >= 4 * info.block_tokens, "the checks need a context of four blocks"
        self.size = info.block_tokens
        self.length = 2 * self.size + 3
        rng = np.random.default_rng(0)
        self.text: list[int] = rng.integers(0, info.vocab_size, self.length).tolist()
        self.other: list[int] = rng.integers(0, info.vocab_size, self.length).tolist()
        self.blocks = [7, 2, 11, 5]
        runner.allocate_kv(BLOCKS)
        self.expected = self.logits([Run(self.text, 0, self.blocks)])

    def logits(self, runs: Sequence[Run], order: Sequence[int] | None = None) -> FloatArray:
        """[T, V] of the runs' tokens in the runs' order, whatever the order in the batch."""
        got = self.runner.forward(pack(runs, order)).logits
        shape, kind = got.shape, got.dtype
        count = sum(len(run.tokens) for run in runs)
        assert shape == (count, self.runner.info.vocab_size), f"logits are {shape}"
        assert kind == np.float32, f"logits are {kind}"
        placed = np.empty_like(got)
        placed[np.arange(count) if order is None else np.asarray(order)] = got
        return placed

    def same(self, got: FloatArray, expected: FloatArray, what: str) -> None:
        if self.runner.info.batch_invariant:
            assert np.array_equal(got, expected), f"{what}: not bit for bit the same, as batch_invariant promises"
        else:
            off = float(np.abs(got - expected).max())
            assert off <= self._tolerance, f"{what}: logits off by {off}"


def _chunks_add_up(bench: _Bench) -> None:
    for cuts in ([5], [bench.size], [1, 4, bench.size + 1], list(range(1, bench.length))):
        edges = [0, *cuts, bench.length]
        parts = [bench.logits([Run(bench.text[start:end], start, bench.blocks)]) for start, end in pairwise(edges)]
        bench.same(np.concatenate(parts), bench.expected, f"a prompt cut at {cuts}")


def _neighbours_do_not_matter(bench: _Bench) -> None:
    """Prefill of one text, decode steps and drafted rows of others, in order and shuffled."""
    half = bench.length // 2
    bench.logits([Run(bench.text[:half], 0, [1, 3, 4, 6]), Run(bench.other[:half], 0, [8, 9, 10, 12])])
    runs = [
        Run(bench.text, 0, bench.blocks),
        Run(bench.text[half : half + 1], half, [1, 3, 4, 6]),
        Run(bench.other[half : half + 5], half, [8, 9, 10, 12]),
    ]
    expected = np.concatenate([bench.expected, bench.expected[half : half + 1]])
    bench.same(bench.logits(runs)[: len(expected)], expected, "among others")
    order = np.random.default_rng(1).permutation(bench.length + 6).tolist()
    bench.same(bench.logits(runs, order)[: len(expected)], expected, "among others, shuffled")


def _a_shared_prefix_serves_both(bench: _Bench) -> None:
    bench.logits([Run(bench.text[: bench.size], 0, [7])])
    rest = bench.text[bench.size :]
    mine, theirs = Run(rest, bench.size, [7, 13, 14]), Run(bench.other[: bench.size], bench.size, [7, 15])
    got = bench.logits([theirs, mine])[bench.size :]
    bench.same(got, bench.expected[bench.size :], "on a prefix that another sequence wrote")


def _rejected_tokens_leave_no_trace(bench: _Bench) -> None:
    kept = bench.size - 2
    bench.logits([Run(bench.text[:kept], 0, bench.blocks)])
    bench.logits([Run(bench.other[:6], kept, bench.blocks)])
    got = bench.logits([Run(bench.text[kept:], kept, bench.blocks)])
    bench.same(got, bench.expected[kept:], "after a rejected draft")


def _rows_and_words_can_be_chosen(bench: _Bench) -> None:
    whole = pack([Run(bench.text, 0, bench.blocks)])
    rows = np.asarray([3, bench.length - 1, 3], dtype=np.int32)
    got = bench.runner.forward(replace(whole, logit_rows=rows)).logits
    bench.same(got, bench.expected[rows], "chosen rows")
    none = bench.runner.forward(replace(whole, logit_rows=rows[:0])).logits
    assert none.shape == (0, bench.runner.info.vocab_size), f"no rows wanted, but logits are {none.shape}"
    for words in ([5, 0, 9], [1], list(range(8))):
        batch = replace(whole, logit_rows=rows, vocabulary=np.asarray(words, dtype=np.int32))
        got = bench.runner.forward(batch).logits
        assert got.shape == (3, len(words)), f"3 rows of {len(words)} words wanted, but logits are {got.shape}"
        off = float(np.abs(got - bench.expected[rows][:, words]).max())
        assert off <= bench._tolerance, f"a part of the vocabulary: logits off by {off}"


def _layers_can_be_looked_into(bench: _Bench) -> None:
    info = bench.runner.info
    layers = tuple(range(info.layers + 1))
    whole = replace(pack([Run(bench.text, 0, bench.blocks)]), hidden_layers=layers)
    got = bench.runner.forward(whole)
    assert set(got.hidden) == set(layers), f"layers {sorted(got.hidden)} came, not {layers}"
    last = replace(whole, logit_rows=np.asarray([bench.length - 1], dtype=np.int32), hidden_layers=(info.layers,))
    alone = bench.runner.forward(last).hidden[info.layers]
    for layer, states in got.hidden.items():
        assert states.shape == (bench.length, info.hidden_size), f"layer {layer} is {states.shape}"
        assert states.dtype == np.float32, f"layer {layer} is {states.dtype}"
        assert np.isfinite(states).all(), f"layer {layer} isn't finite"
    assert np.array_equal(alone[0], got.hidden[info.layers][-1]), "a layer depends on which others are wanted"


def _entries_can_be_moved(bench: _Bench) -> None:
    """Two blocks change places in one call, and the tables with them."""
    bench.logits([Run(bench.text[:-1], 0, bench.blocks)])
    first, second = (np.arange(block * bench.size, (block + 1) * bench.size) for block in bench.blocks[:2])
    bench.runner.copy_kv(np.concatenate([first, second]), np.concatenate([second, first]))
    swapped = [bench.blocks[1], bench.blocks[0], *bench.blocks[2:]]
    got = bench.logits([Run(bench.text[-1:], bench.length - 1, swapped)])
    bench.same(got, bench.expected[-1:], "after blocks were exchanged by copy_kv")


def _nonsense_is_refused(bench: _Bench) -> None:
    info = bench.runner.info
    good = pack([Run(bench.text[:4], 0, bench.blocks), Run(bench.text[:4], 0, [1, 3])])
    wrong: dict[str, Any] = {
        "no tokens": {name: getattr(good, name)[:0] for name in ("tokens", "positions", "slots", "logit_rows")},
        "a token out of range": {"tokens": good.tokens + info.vocab_size},
        "a negative token": {"tokens": good.tokens - info.vocab_size},
        "a position past the context": {"positions": good.positions + info.max_context},
        "a position past the block table": {"positions": good.positions + 4 * bench.size},
        "a slot out of range": {"slots": good.slots + 2},
        "a block out of range": {"block_tables": good.block_tables + BLOCKS},
        "a missing block": {"block_tables": np.full_like(good.block_tables, -1)},
        "two tokens in one place": {"slots": np.zeros_like(good.slots)},
        "a row out of range": {"logit_rows": good.logit_rows + len(good.tokens)},
        "a word out of range": {"vocabulary": np.asarray([info.vocab_size], dtype=np.int32)},
        "a layer out of range": {"hidden_layers": (info.layers + 1,)},
    }
    for what, fields in wrong.items():
        batch = replace(good, **fields)
        _raises(ValueError, what, partial(bench.runner.forward, batch))
    _raises(MemoryError, "KV beyond all memory", partial(bench.runner.allocate_kv, 10**12))
    bench.runner.allocate_kv(BLOCKS)
    bench.same(bench.logits([Run(bench.text, 0, bench.blocks)]), bench.expected, "after refusals")


def _raises(kind: type[Exception], what: str, act: Callable[[], object]) -> None:
    try:
        act()
    except kind:
        return
    raise AssertionError(f"{what}: not refused with a {kind.__name__}")


def _trees_see_their_paths(bench: _Bench) -> None:
    """Every node of a tree has the logits of its path alone; an accepted path, moved down, serves what follows."""
    start = bench.size - 2
    prefix = bench.text[:start]
    tokens, parents = [4, 5, 6, 7, 5, 6], [-1, -1, 0, 0, 1, 4]
    paths = [_path(parents, node) for node in range(len(tokens))]
    expected = np.concatenate(
        [bench.logits([Run([*prefix, *(tokens[node] for node in path)], 0, [1, 3, 4])])[-1:] for path in paths]
    )
    bench.logits([Run(prefix, 0, bench.blocks)])
    entries = start + np.arange(len(tokens))
    tree = replace(
        pack([Run(tokens, start, bench.blocks)]),
        positions=np.asarray([start + len(path) - 1 for path in paths], dtype=np.int32),
        kv_positions=entries.astype(np.int32),
        parents=np.asarray(parents, dtype=np.int32),
    )
    bench.same(bench.runner.forward(tree).logits, expected, "a tree")
    kept = paths[-1]
    bench.runner.copy_kv(_places(bench, entries[kept]), _places(bench, start + np.arange(len(kept))))
    got = bench.logits([Run([9], start + len(kept), bench.blocks)])
    alone = bench.logits([Run([*prefix, *(tokens[node] for node in kept), 9], 0, [1, 3, 4])])[-1:]
    bench.same(got, alone, "after an accepted path was moved down")
    _raises(ValueError, "parents without entries", partial(bench.runner.forward, replace(tree, kv_positions=None)))
    backwards = replace(tree, parents=np.asarray(parents[::-1], dtype=np.int32))
    _raises(ValueError, "a parent after its child", partial(bench.runner.forward, backwards))


def _path(parents: Sequence[int], node: int) -> list[int]:
    above: list[int] = []
    while node >= 0:
        above.insert(0, node)
        node = parents[node]
    return above


def _places(bench: _Bench, entries: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    return np.asarray([bench.blocks[entry // bench.size] * bench.size + entry % bench.size for entry in entries])


_CHECKS: Iterable[Callable[[_Bench], None]] = (
    _chunks_add_up,
    _neighbours_do_not_matter,
    _a_shared_prefix_serves_both,
    _rejected_tokens_leave_no_trace,
    _rows_and_words_can_be_chosen,
    _layers_can_be_looked_into,
    _entries_can_be_moved,
    _nonsense_is_refused,
)
