"""The toy target: its logits are a law of the text that its KV holds, and of nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from decodeloop.engine.runners import Batch, RunnerOptions
from decodeloop.engine.runners.toy import ToyRunner

BLOCK = 4


def toy(*, layers: int | None = None, blocks: int = 16, **options: Any) -> ToyRunner:
    runner = ToyRunner(None, RunnerOptions(block_tokens=BLOCK, layers=layers, options=options))
    runner.allocate_kv(blocks)
    return runner


def feed(runner: ToyRunner, tokens: list[int], start: int = 0, table: tuple[int, ...] = (3, 1, 7, 2)) -> np.ndarray:
    count = len(tokens)
    return runner.forward(
        Batch(
            tokens=np.asarray(tokens, np.int32),
            positions=np.arange(start, start + count, dtype=np.int32),
            slots=np.zeros(count, np.int32),
            block_tables=np.asarray([table], np.int32),
            logit_rows=np.arange(count, dtype=np.int32),
        )
    ).logits


def test_the_whole_text_decides() -> None:
    text = [5, 9, 1, 33, 2, 2, 8]
    last = feed(toy(), text)[-1]
    for place in range(len(text)):
        changed = [*text[:place], text[place] ^ 1, *text[place + 1 :]]
        assert not np.array_equal(feed(toy(), changed)[-1], last)


def test_with_an_order_the_last_tokens_decide() -> None:
    assert np.array_equal(feed(toy(order=2), [1, 2, 3, 4])[-1], feed(toy(order=2), [9, 3, 4])[-1])
    assert not np.array_equal(feed(toy(order=2), [1, 2, 5, 4])[-1], feed(toy(order=2), [1, 2, 3, 4])[-1])


def test_seed_and_sharpness() -> None:
    assert not np.array_equal(feed(toy(seed=1), [1]), feed(toy(seed=2), [1]))
    assert np.ptp(feed(toy(sharpness=0.0), [1])) == 0


def test_a_lost_block_is_named() -> None:
    runner = toy()
    feed(runner, list(range(6)))
    with pytest.raises(RuntimeError, match="position 4 from block 5, which was never written"):
        feed(runner, [1, 1], start=6, table=(3, 5, 7, 2))
    with pytest.raises(RuntimeError, match="position 0 from block 1, which holds position 4"):
        feed(runner, [1, 1], start=6, table=(1, 3, 7, 2))


def test_an_overwritten_entry_changes_the_answer() -> None:
    runner = toy()
    feed(runner, [1, 2, 3, 4, 5])
    right = feed(runner, [6], start=5)
    feed(runner, [0], start=2)
    assert not np.array_equal(feed(runner, [6], start=5), right)


def test_equal_rows_are_exactly_equal() -> None:
    rows = feed(toy(equal_rows=((3, 8), (1, 2, 60))), [1, 5, 9])
    assert np.array_equal(rows[:, 3], rows[:, 8])
    assert np.array_equal(rows[:, 1], rows[:, 60])


def test_a_script_is_said_and_a_loop_never_ends() -> None:
    rows = feed(toy(script={7: [4, 4, 6], 2: [2]}), [7, 4, 4, 6, 2, 2])
    assert list(rows.argmax(axis=1))[:3] == [4, 4, 6]
    assert list(rows.argmax(axis=1))[-2:] == [2, 2]


@pytest.mark.parametrize(("option", "isbad"), [("nan_at", np.isnan), ("inf_at", np.isposinf)])
def test_a_poisoned_text_stays_poisoned(option: str, isbad: Any) -> None:
    rows = feed(toy(**{option: 9}), [1, 9, 2])
    assert list(isbad(rows).any(axis=1)) == [False, True, True]


def test_the_first_layer_is_a_draft_that_is_often_right() -> None:
    tokens = [int(token) for token in np.random.default_rng(0).integers(0, 64, 200)]
    table = tuple(range(50))
    target = feed(toy(blocks=50), tokens, table=table).argmax(axis=1)
    draft = feed(toy(blocks=50, layers=1), tokens, table=table).argmax(axis=1)
    assert 0.4 < np.mean(draft == target) < 0.95


def test_a_siblings_kv_is_not_seen_and_an_accepted_path_moves_down() -> None:
    prefix, path, sibling = [1, 2, 3], [10, 11], 20
    plain = feed(toy(), [*prefix, *path])
    runner = toy()
    feed(runner, prefix)
    tree = runner.forward(
        Batch(
            tokens=np.asarray([sibling, *path]),
            positions=np.asarray([3, 3, 4]),
            slots=np.zeros(3, np.int32),
            block_tables=np.asarray([[3, 1, 7, 2]]),
            logit_rows=np.asarray([1, 2]),
            kv_positions=np.asarray([3, 4, 5]),
            parents=np.asarray([-1, -1, 1]),
        )
    )
    assert np.array_equal(tree.logits, plain[3:])
    entries = np.asarray([3 * BLOCK + 3, 1 * BLOCK, 1 * BLOCK + 1])
    runner.copy_kv(entries[1:], entries[:2])
    assert np.array_equal(feed(runner, [12], start=5), feed(toy(), [*prefix, *path, 12])[-1:])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RunnerOptions(options={"sharp": 1}), "no option sharp; choose from vocab_size"),
        (RunnerOptions(dtype="int4"), "no dtype 'int4'; choose from auto, float32"),
        (RunnerOptions(layers=3), r"layers must be within 1\.\.2, not 3"),
    ],
)
def test_bad_options_are_named(options: RunnerOptions, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToyRunner(None, options)


def test_kv_that_cannot_fit_is_refused_with_the_numbers() -> None:
    with pytest.raises(MemoryError, match=f"{10**15} KV blocks need {64 * 10**15} bytes"):
        toy(blocks=10**15)
