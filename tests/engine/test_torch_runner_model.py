"""The torch runner on the default model's real weights."""

import itertools

import numpy as np
import pytest
import torch
from scipy.special import softmax
from transformers import LlamaConfig, LlamaForCausalLM

from decodeloop.engine.models.sources import open_checkpoint
from decodeloop.engine.runners import RunnerOptions
from decodeloop.engine.runners.torch import TorchRunner
from decodeloop.testing import Run, pack

pytestmark = pytest.mark.model

TEXT = (
    "Speculative decoding lets a small model propose tokens and a large one check them all at once.\n"
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n"
    "The capital of France is Paris, the capital of Italy is Rome and the capital of Japan is"
)
BLOCKS = (4, 1, 7, 0, 2, 9, 6)


@pytest.fixture(scope="module")
def checkpoint(default_model_path):
    return open_checkpoint(default_model_path)


@pytest.fixture(scope="module")
def text(checkpoint):
    return checkpoint.tokenizer.encode(TEXT)


@pytest.fixture(scope="module")
def target(checkpoint):
    return TorchRunner(checkpoint, RunnerOptions(threads=1))


@pytest.fixture(scope="module")
def expected(checkpoint, text):
    """What transformers makes of the same dequantised weights."""
    names = {
        "attn_norm": "input_layernorm",
        "mlp_norm": "post_attention_layernorm",
        **{name: f"self_attn.{name}_proj" for name in "qkvo"},
        **{name: f"mlp.{name}_proj" for name in ("gate", "up", "down")},
    }
    config = checkpoint.config
    with torch.device("meta"):
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                intermediate_size=config.ffn_size,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                num_key_value_heads=config.kv_heads,
                max_position_embeddings=config.max_context,
                rms_norm_eps=config.norm_eps,
                rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
                tie_word_embeddings=True,
            )
        )
    model = model.to_empty(device="cpu").eval()
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)
    state = {"model.embed_tokens": "embed", "model.norm": "final_norm"}
    for layer, (ours, theirs) in itertools.product(range(config.layers), names.items()):
        state[f"model.layers.{layer}.{theirs}"] = f"layers.{layer}.{ours}"
    weights = {f"{theirs}.weight": torch.tensor(checkpoint.weight(ours).float32()) for theirs, ours in state.items()}
    assert model.load_state_dict(weights, strict=False).missing_keys in ([], ["lm_head.weight"])
    model.tie_weights()
    with torch.no_grad():
        return model(torch.tensor(text)[None]).logits[0].numpy()


@pytest.mark.parametrize("edges", [(), (16, 40, 41, 46)], ids=["whole", "chunks"])
def test_logits_are_those_of_transformers(target, text, expected, edges):
    target.allocate_kv(10)
    pieces = itertools.pairwise([0, *edges, len(text)])
    got = [target.forward(pack([Run(text[start:end], start, BLOCKS)])).logits for start, end in pieces]
    assert np.abs(np.concatenate(got) - expected).max() < 1e-3


def test_fixed_shape_gives_the_same_bits_alone_and_among_others(checkpoint, text):
    """A few layers are enough: all have the same shapes, and the bits depend on nothing else."""
    runner = TorchRunner(checkpoint, RunnerOptions(threads=2, fixed_shape=True, layers=3))
    assert runner._rows.rows == 16, "on this machine rows depend on their place in a tile"
    runner.allocate_kv(30)
    alone = [runner.forward(pack([Run([token], at, BLOCKS)])).logits[0] for at, token in enumerate(text[:20])]
    others = [Run(text[20 : 20 + n], 0, (10 + i,)) for i, n in enumerate((1, 5, 1, 7, 1, 1, 1, 1, 3, 1, 1, 1, 1, 1, 1))]
    block = runner.forward(pack([*others[:8], Run(text[15:20], 15, BLOCKS), *others[8:]])).logits[18:23]
    assert np.array_equal(block, np.stack(alone[15:]))


def test_the_int4_form_is_a_real_draft(checkpoint, text, expected):
    """What a rejection sampler would accept of it at temperature 1: the sum of min(p, q)."""
    draft = TorchRunner(checkpoint, RunnerOptions(threads=1, dtype="int4"))
    draft.allocate_kv(10)
    q = softmax(draft.forward(pack([Run(text, 0, BLOCKS)])).logits, axis=1)
    accepted = np.minimum(softmax(expected, axis=1), q).sum(axis=1)
    assert accepted.mean() > 0.75
