"""The native runner against double precision, on shapes that fill no vector, and what it refuses."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from compiler import needs_compiled
from decodeloop.engine import kernels
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.native import NativeRunner
from decodeloop.testing import Run, pack
from invented import InventedCheckpoint, expected, invented_config

ISAS = kernels.load().kernels()
LONG = 300  # positions: more than one chunk of attention


def runner_of(checkpoint, *, isa="", blocks=40, **options):
    runner = NativeRunner(checkpoint, RunnerOptions(**{"threads": 1, **options}, options={"isa": isa}))
    runner.allocate_kv(blocks)
    return runner


def text(count, seed=5, vocab_size=71):
    return np.random.default_rng(seed).integers(0, vocab_size, count).tolist()


def blocks_for(count, seed=1):
    """A block table in no order."""
    return np.random.default_rng(seed).permutation(40)[: -(-count // 16)].tolist()


def answer(runner, tokens, layers=()):
    return runner.forward(replace(pack([Run(tokens, 0, blocks_for(len(tokens)))]), hidden_layers=layers))


def test_where_a_compiler_is_the_kernels_are():
    needs_compiled()
    assert kernels.load().kernels()[-1] == "portable"


def test_without_the_module_the_reason_is_given(monkeypatch):
    monkeypatch.setitem(sys.modules, kernels.MODULE, None)
    with pytest.raises(ImportError, match="C\\+\\+ compiler"):
        kernels.load()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_every_state_and_logit_is_that_of_the_definition(family, isa):
    checkpoint = InventedCheckpoint(invented_config(family))
    got = answer(runner_of(checkpoint, isa=isa, threads=2), text(LONG), layers=(0, 1, 2))
    *states, logits = expected(checkpoint, text(LONG))
    for layer, state in enumerate(states):
        np.testing.assert_allclose(got.hidden[layer], state, atol=2e-5 * np.abs(state).max())
    np.testing.assert_allclose(got.logits, logits, atol=5e-5)


@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma3"])
def test_the_first_layers_alone(family):
    checkpoint = InventedCheckpoint(invented_config(family))
    runner = runner_of(checkpoint, layers=1)
    assert runner.info.layers == 1
    np.testing.assert_allclose(answer(runner, text(9)).logits, expected(checkpoint, text(9), layers=1)[-1], atol=5e-5)


@pytest.mark.parametrize(("dtype", "share"), [("bf16", 0.02), ("int8", 0.04)])
@pytest.mark.parametrize("isa", ISAS)
def test_rounded_weights_stay_near(dtype, share, isa):
    checkpoint = InventedCheckpoint(invented_config("llama", hidden_size=128, ffn_size=160))
    got = answer(runner_of(checkpoint, isa=isa, dtype=dtype), text(60))
    logits = expected(checkpoint, text(60))[-1]
    assert np.abs(got.logits - logits).std() < share * logits.std()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("isa", ISAS)
def test_the_file_s_blocks_are_kept(kind, isa):
    """The embedding exactly; products as exactly as inputs in groups of 8-bit integers allow."""
    config = invented_config("llama", hidden_size=128, ffn_size=160, head_dim=32, heads=4)
    names = [f"layers.{i}.{part}" for i in range(2) for part in ("q", "k", "v", "o", "gate", "up", "down")]
    checkpoint = InventedCheckpoint(config, formats=dict.fromkeys(["embed", "head", *names], kind))
    runner = runner_of(checkpoint, isa=isa)
    assert runner.info.weight_format == {"Q8_0": "int8"}.get(kind, "int4")
    got = answer(runner, text(60), layers=(0,))
    states = expected(checkpoint, text(60))
    np.testing.assert_allclose(got.hidden[0], states[0], rtol=1e-6, atol=1e-7)
    assert np.abs(got.logits - states[-1]).std() < 0.03 * states[-1].std()


def test_each_matrix_keeps_the_format_of_its_own():
    config = invented_config("llama", hidden_size=64, ffn_size=96, head_dim=32, heads=4)
    checkpoint = InventedCheckpoint(config, formats={"layers.0.q": "Q4_0", "layers.1.up": "Q8_0", "embed": "Q4_1"})
    runner = runner_of(checkpoint)
    assert set(runner.info.weight_format.split(" + ")) == {"fp32", "int4", "int8"}
    logits = expected(checkpoint, text(40))[-1]
    assert np.abs(answer(runner, text(40)).logits - logits).std() < 0.03 * logits.std()


@pytest.mark.parametrize("isa", ISAS)
def test_chosen_tokens_have_the_logits_of_all(isa):
    for family in ("llama", "gemma3"):
        runner = runner_of(InventedCheckpoint(invented_config(family)), isa=isa)
        batch = pack([Run(text(20), 0, [3, 7])])
        everything = runner.forward(batch).logits.copy()
        chosen = np.asarray([70, 0, 33, 32, 31, 33], dtype=np.int32)
        assert np.array_equal(runner.forward(replace(batch, vocabulary=chosen)).logits, everything[:, chosen])
        rows = np.asarray([19, 0, 19], dtype=np.int32)
        assert np.array_equal(runner.forward(replace(batch, logit_rows=rows)).logits, everything[rows])


def test_bits_do_not_depend_on_the_number_of_threads():
    checkpoint = InventedCheckpoint(invented_config("gemma3"))
    one, three = (answer(runner_of(checkpoint, threads=threads), text(LONG)).logits for threads in (1, 3))
    assert np.array_equal(one, three)


def test_weights_are_shared_and_caches_are_not():
    checkpoint = InventedCheckpoint(invented_config("qwen3"))
    whole = runner_of(checkpoint)
    before = answer(whole, text(20)).logits.copy()
    part = runner_of(checkpoint, layers=1, weights_of=whole)
    assert part.info.weight_bytes == 0
    assert np.array_equal(answer(part, text(20)).logits, answer(runner_of(checkpoint, layers=1), text(20)).logits)
    later = whole.forward(pack([Run([1], 20, blocks_for(20))])).logits
    assert np.array_equal(before, answer(whole, text(20)).logits)
    assert np.array_equal(later, whole.forward(pack([Run([1], 20, blocks_for(20))])).logits)
    with pytest.raises(ValueError, match="weights_of has 1 layers"):
        runner_of(checkpoint, weights_of=runner_of(checkpoint, layers=1))
    with pytest.raises(ValueError, match="same checkpoint and dtype"):
        runner_of(InventedCheckpoint(invented_config("qwen3")), weights_of=whole)


def test_larger_blocks_are_made_of_the_kernels_blocks():
    checkpoint = InventedCheckpoint(invented_config("llama"))
    runner = runner_of(checkpoint, block_tokens=32)
    assert runner.info.kv_block_bytes == 2 * runner_of(checkpoint).info.kv_block_bytes
    got = runner.forward(pack([Run(text(70), 0, [9, 2, 30])])).logits
    assert np.array_equal(got, answer(runner_of(checkpoint), text(70)).logits)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "no dtype 'int3'; choose from auto, fp32, bf16, int8, int4"),
        ({"device": "cuda"}, "no device 'cuda'; choose cpu"),
        ({"block_tokens": 24}, "block_tokens must be a multiple of 16, not 24"),
        ({"layers": 3}, "layers must be within 1..2, not 3"),
        ({"options": {"isa": "neon"}}, "no kernels 'neon' on this machine; choose from .*portable"),
        ({"options": {"speed": "high"}}, "no option speed; choose from isa"),
    ],
)
def test_what_it_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        NativeRunner(InventedCheckpoint(invented_config("llama")), RunnerOptions(**{"threads": 1, **options}))


def test_a_shape_that_the_kernels_do_not_take_is_named():
    with pytest.raises(ValueError, match="at most 512, not 640"):
        runner_of(InventedCheckpoint(invented_config("llama", head_dim=640, heads=2)))


def test_more_cache_than_memory_is_refused_with_the_numbers():
    runner = runner_of(InventedCheckpoint(invented_config("llama")))
    with pytest.raises(MemoryError, match=str(runner.info.kv_block_bytes << 40)):
        runner.allocate_kv(1 << 40)


def test_the_time_of_a_step_is_told_by_section():
    runner = runner_of(InventedCheckpoint(invented_config("llama")))
    answer(runner, text(20))
    sections = runner.section_seconds()
    assert set(sections) == {"embed", "qkv", "attention", "output", "mlp", "head"}
    assert all(seconds > 0 for seconds in sections.values())
    assert not any(runner.section_seconds().values())


FORKED = """
import os, sys
sys.path[:0] = [{here!r}, os.path.dirname({here!r})]
from test_native import answer, runner_of, text
from invented import InventedCheckpoint, invented_config
runner = runner_of(InventedCheckpoint(invented_config("llama")), threads=3)
bits = answer(runner, text(40)).logits.tobytes()
child = os.fork()
same = answer(runner, text(40)).logits.tobytes() == bits
if child == 0:
    del runner
    os._exit(not same)
assert same and os.waitpid(child, 0)[1] == 0
"""


def test_a_fork_starts_threads_of_its_own():
    code = FORKED.format(here=os.path.dirname(__file__))
    subprocess.run([sys.executable, "-W", "ignore::DeprecationWarning", "-c", code], check=True, timeout=60)
