"""The torch runner against transformers, and its formats, options and refusals."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from decodeloop.engine.build import open_draft_runner
from decodeloop.engine.hardware import read_hardware
from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.torch import TorchRunner
from decodeloop.engine.runners.torch.linear import Int4Linear, dequantise_int4, quantise_int4
from decodeloop.engine.settings import EngineSettings
from decodeloop.testing import Run, check_runner, pack
from tiny import tiny_hf

LENGTH = 41
TEXT = np.random.default_rng(0).integers(0, 64, LENGTH)
BLOCKS = (5, 1, 3, 9, 2, 7, 0, 11, 8, 12, 4)
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SLIDING = ["sliding_attention", "sliding_attention", "full_attention"]
MODELS = {
    "llama": ("llama", {}),
    "llama-untied-llama3-bias": (
        "llama",
        {"tie_word_embeddings": False, "rope_parameters": LLAMA3, "attention_bias": True, "num_key_value_heads": 4},
    ),
    "llama-linear-one-kv-head": (
        "llama",
        {
            "rope_parameters": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 4.0},
            "num_key_value_heads": 1,
        },
    ),
    "qwen3": ("qwen3", {}),
    "gemma3": (
        "gemma3",
        {
            "layers": 3,
            "layer_types": SLIDING,
            "sliding_window": 6,
            "query_pre_attn_scalar": 19,
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
                "full_attention": {"rope_type": "linear", "rope_theta": 50000.0, "factor": 8.0},
            },
        },
    ),
    "gemma3-softcaps": ("gemma3", {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 3.0}),
}


@pytest.fixture(scope="module", params=list(MODELS))
def model(request, tmp_path_factory):
    """A checkpoint, and the logits and hidden states of TEXT that transformers computes from it."""
    family, config = MODELS[request.param]
    path = tiny_hf(family, tmp_path_factory.mktemp(family), **config)
    reference = AutoModelForCausalLM.from_pretrained(path, attn_implementation="eager").eval()
    if config.get("attention_bias"):
        with torch.no_grad():
            for name, parameter in reference.named_parameters():
                if name.endswith("bias"):
                    parameter.normal_()
        reference.save_pretrained(path)
    with torch.no_grad():
        cap = config.get("attn_logit_softcapping")  # transformers has it in the function, but doesn't hand it there
        answer = reference(torch.tensor(TEXT)[None], output_hidden_states=True, **({"softcap": cap} if cap else {}))
    return open_checkpoint(path), answer.logits[0].numpy(), [states[0].numpy() for states in answer.hidden_states]


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return open_checkpoint(tiny_hf("llama", tmp_path_factory.mktemp("llama"), layers=3))


def opened(checkpoint, **options):
    runner = TorchRunner(checkpoint, RunnerOptions(threads=1, **{"block_tokens": 4, **options}))
    runner.allocate_kv(16)
    return runner


def logits(runner, *edges):
    """TEXT's logits, forwarded in pieces that begin at `edges`."""
    pieces = itertools.pairwise([0, *edges, LENGTH])
    return np.concatenate([runner.forward(pack([Run(TEXT[start:end], start, BLOCKS)])).logits for start, end in pieces])


@pytest.mark.parametrize("fixed_shape", [False, True])
@pytest.mark.parametrize("edges", [(), (3, 7, 20, 38), tuple(range(1, LENGTH))], ids=["whole", "chunks", "tokens"])
def test_logits_are_those_of_transformers(model, fixed_shape, edges):
    checkpoint, expected, _ = model
    assert np.abs(logits(opened(checkpoint, fixed_shape=fixed_shape), *edges) - expected).max() < 1e-3


def test_hidden_states_are_those_of_transformers(model):
    """Except the last, which transformers gives after the final norm."""
    checkpoint, _, expected = model
    layers = tuple(range(checkpoint.config.layers))
    batch = dataclasses.replace(pack([Run(TEXT, 0, BLOCKS)]), hidden_layers=layers)
    got = opened(checkpoint).forward(batch).hidden
    for layer in layers:
        assert np.abs(got[layer] - expected[layer]).max() < 1e-3


@pytest.mark.parametrize(("fixed_shape", "tolerance"), [(False, 1e-4), (True, 0.0)])
def test_a_block_of_five_is_five_steps(model, fixed_shape, tolerance):
    runner = opened(model[0], fixed_shape=fixed_shape)
    block, steps = logits(runner, 30, 35)[30:35], logits(runner, *range(30, 35))[30:35]
    assert np.abs(block - steps).max() <= tolerance


@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        ({"fixed_shape": True}, 1e-4),
        ({"dtype": "bfloat16"}, 0.3),
        ({"dtype": "bf16", "fixed_shape": True}, 0.3),
        ({"dtype": "int4"}, 0.3),
        ({"dtype": "int4", "fixed_shape": True}, 0.3),
        ({"layers": 1}, 1e-4),
    ],
)
def test_every_format_keeps_the_contract(model, options, tolerance):
    check_runner(TorchRunner(model[0], RunnerOptions(threads=1, block_tokens=4, **options)), tolerance)


def test_a_window_forgets_what_left_it(tmp_path):
    """All layers with a window of 6: beyond 2 * 5 positions nothing of the past is left."""
    path = tiny_hf("gemma3", tmp_path, sliding_window=6, layer_types=["sliding_attention"] * 2)
    runner = opened(open_checkpoint(path), fixed_shape=True)
    tail = logits(runner)[-1]
    changed = runner.forward(pack([Run(np.concatenate([(TEXT[:30] + 1) % 64, TEXT[30:]]), 0, BLOCKS)])).logits
    assert np.array_equal(changed[-1], tail)
    assert not np.array_equal(changed[-2], logits(runner)[-2])


def test_sequences_of_all_lengths_in_one_batch(model):
    """Prefill, single steps with contexts from 1 to 40, and a draft: whatever is grouped and padded together."""
    checkpoint, expected, _ = model
    runner = opened(checkpoint)
    runner.allocate_kv(110)
    tables = [tuple(range(11 * i, 11 * i + 11)) for i in range(10)]
    starts = (0, 1, 2, 3, 7, 8, 31, 32, 33, 40)
    lengths = (LENGTH, 1, 1, 1, 1, 1, 5, 5, 1, 1)
    for table, start in zip(tables, starts, strict=True):
        if start:
            runner.forward(pack([Run(TEXT[:start], 0, table)]))
    runs = [Run(TEXT[s : s + n], s, table) for s, n, table in zip(starts, lengths, tables, strict=True)]
    got = runner.forward(pack(runs)).logits
    rows = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)])
    assert np.abs(got - expected[rows]).max() < 1e-3


def test_a_sequence_of_nans_harms_nobody(llama):
    """Its KV is full of NaN; the others are padded to its length, or get its blocks once it is gone."""
    runner = opened(llama)
    expected = logits(runner)
    for pool in runner._pools:
        with torch.inference_mode():
            pool[20:40] = float("nan")
    sick, well = Run(TEXT[:1], 19, (5, 6, 7, 8, 9)), Run(TEXT[:1], 0, (0,))
    got = runner.forward(pack([sick, well])).logits
    assert np.isnan(got[0]).all()
    assert np.abs(got[1] - expected[0]).max() < 1e-4
    assert np.abs(logits(runner) - expected).max() < 1e-4


def test_the_first_layers_are_a_draft_that_shares_the_weights(llama):
    target = opened(llama)
    shared = opened(llama, layers=2, weights_of=target)
    alone = opened(llama, layers=2)
    assert np.array_equal(logits(shared), logits(alone))
    assert not np.array_equal(logits(shared), logits(target))
    assert shared.info.layers == 2
    assert shared.info.weight_bytes == 0
    assert 0 < alone.info.weight_bytes < target.info.weight_bytes
    assert shared.weights is target.weights


def test_a_draft_model_of_the_engine_shares_them_where_it_can(llama):
    settings = EngineSettings(runner="torch", threads=1)
    target = opened(llama, block_tokens=16)
    assert open_draft_runner(llama, settings, "layers:2", target).weights is target.weights
    assert open_draft_runner(llama, settings, "int4:layers:2", target).info.weight_bytes > 0


def test_weights_can_be_shared_only_with_the_same(llama):
    whole, part = opened(llama), opened(llama, layers=1)
    for options in ({"weights_of": whole, "dtype": "int4"}, {"weights_of": whole, "dtype": "bf16"}):
        with pytest.raises(ValueError, match="weights_of must be a TorchRunner of the same checkpoint, dtype and dev"):
            opened(llama, **options)
    with pytest.raises(ValueError, match="weights_of has 1 layers, fewer than 2"):
        opened(llama, weights_of=part, layers=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "int3"}, "no dtype 'int3'; choose from auto, float32, bfloat16, int4"),
        ({"device": "gpu7"}, "no device 'gpu7'; choose from cpu, cuda"),
        ({"device": "meta"}, "no device 'meta'; choose from cpu, cuda"),
        ({"layers": 4}, r"layers must be within 1\.\.3, not 4"),
        ({"layers": 0}, r"layers must be within 1\.\.3, not 0"),
    ],
)
def test_bad_options_are_named(llama, options, message):
    with pytest.raises(ValueError, match=message):
        opened(llama, **options)


def test_info_counts_what_is_held(llama):
    config = llama.config
    parameters = sum(np.prod(llama.weight(name).shape) for name in llama.names())
    info = opened(llama, block_tokens=8).info
    assert info.weight_bytes == 4 * parameters
    assert info.kv_block_bytes == 4 * 8 * 2 * config.layers * config.kv_heads * config.head_dim
    assert opened(llama, dtype="bf16", block_tokens=8).info.kv_block_bytes == info.kv_block_bytes // 2
    assert opened(llama, dtype="int4").info.weight_bytes < info.weight_bytes / 3
    assert (info.max_context, info.block_tokens, info.vocab_size) == (512, 8, 64)


def test_kv_that_cannot_fit_is_refused_with_the_numbers(llama):
    runner = opened(llama)
    size = runner.info.kv_block_bytes
    with pytest.raises(MemoryError, match=f"{10**12} KV blocks of {size} bytes need {size * 10**12} bytes; [0-9]+ are"):
        runner.allocate_kv(10**12)


def test_logits_outlive_the_next_forward(llama):
    runner = opened(llama)
    first = logits(runner)
    kept = first.copy()
    logits(runner)
    assert np.array_equal(first, kept)


def test_a_changed_vocabulary_is_not_served_from_the_old_ones_rows(llama):
    runner = opened(llama)
    batch = pack([Run(TEXT[:3], 0, BLOCKS)])
    full = runner.forward(batch).logits
    words = np.asarray([3, 50, 7], dtype=np.int32)
    for _ in range(2):
        got = runner.forward(dataclasses.replace(batch, vocabulary=words)).logits
        assert np.abs(got - full[:, words]).max() < 1e-5
        words[1] = 11  # the caller's array changes in place


def test_int4_keeps_a_weight_to_half_a_step():
    weight = torch.randn(48, 96, generator=torch.Generator().manual_seed(0))
    codes, scale, zero = quantise_int4(weight)
    assert codes.min() >= 0
    assert codes.max() <= 15
    off = (dequantise_int4(codes, scale, zero) - weight).abs().view(48, 3, 32)
    assert (off <= 0.55 * scale.float()[..., None]).all()  # and rounding of scale and zero to bfloat16


@pytest.mark.parametrize("out", [48, 37])
@pytest.mark.parametrize("rows", [1, 5, 16])
def test_the_int4_kernel_multiplies_what_was_kept(out, rows):
    draw = torch.Generator().manual_seed(1)
    weight, bias = torch.randn(out, 64, generator=draw), torch.randn(out, generator=draw)
    x = torch.randn(rows, 64, generator=draw).bfloat16()
    expected = x.float() @ dequantise_int4(*quantise_int4(weight)).T + bias
    assert (Int4Linear(weight, bias)(x).float() - expected).abs().max() < 0.02 * expected.abs().max()


def test_int4_needs_whole_groups():
    with pytest.raises(ValueError, match="width is a multiple of 32, not 40"):
        quantise_int4(torch.zeros(4, 40))


@pytest.mark.parametrize(("quota", "threads"), [(None, 4), (0.5, 1), (2.2, 3), (9.0, 4)])
def test_threads_keep_to_the_cpu_quota(quota, threads):
    assert dataclasses.replace(read_hardware(), cores=4, quota_cores=quota).threads == threads
