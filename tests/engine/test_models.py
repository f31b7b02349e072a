"""Models on disk: one model saved in both formats is one model, and it is the one that transformers saved."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from decodeloop.engine.models import Checkpoint, ModelError, RopeScaling
from decodeloop.engine.models.config_gguf import llama3_divisors
from decodeloop.engine.models.sources import open_checkpoint
from tiny import tiny_gguf, tiny_hf

FAMILIES = ("llama", "qwen3", "gemma3")
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "qwen3": ("qwen3", {}),
    "gemma3": ("gemma3", {}),
    "untied": ("llama", {"tie_word_embeddings": False}),
    "biased": ("llama", {"attention_bias": True}),
    "scaled": ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}),
    "llama3": ("llama", {"rope_parameters": LLAMA3_ROPE, "head_dim": 64}),
    "capped": ("gemma3", {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}),
}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A directory with the variant as `hf` and as model.gguf, made once."""
    made: dict[str, Path] = {}

    def make(variant: str) -> Path:
        if variant not in made:
            made[variant] = tmp_path_factory.mktemp(variant)
            family, config = VARIANTS[variant]
            tiny_hf(family, made[variant] / "hf", **config)
            tiny_gguf(made[variant] / "hf", made[variant] / "model.gguf")
        return made[variant]

    return make


def both(path: Path) -> tuple[Checkpoint, Checkpoint]:
    return open_checkpoint(path / "hf"), open_checkpoint(path / "model.gguf")


@pytest.mark.parametrize("variant", VARIANTS)
def test_both_formats_hold_one_model(variant: str, saved: Callable[[str], Path]) -> None:
    directory, file = both(saved(variant))
    assert directory.config == file.config
    assert set(directory.names()) == set(file.names())
    for name in [*directory.names(), "head"]:
        np.testing.assert_array_equal(directory.weight(name).float32(), file.weight(name).float32(), err_msg=name)
        assert directory.weight(name).shape == file.weight(name).shape
        assert directory.weight(name).format == "F32"
        assert directory.weight(name).blocks() is None
        assert file.weight(name).blocks() is None
    assert directory.chat_template == file.chat_template is not None
    ours, theirs = directory.tokenizer, file.tokenizer
    assert (ours.vocab_size, ours.eos_ids, ours.bos_id, ours.add_bos) == (64, {0, 2}, 1, False)
    assert (theirs.vocab_size, theirs.eos_ids, theirs.bos_id, theirs.add_bos) == (64, {0, 2}, 1, False)
    for id_ in range(64):
        assert ours.token_bytes(id_) == theirs.token_bytes(id_)
        assert ours.is_special(id_) == theirs.is_special(id_)
    assert ours.encode("def f(x) <|im_end|>", special=True) == theirs.encode("def f(x) <|im_end|>", special=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_weights_are_those_that_transformers_uses(family: str, saved: Callable[[str], Path]) -> None:
    path = saved(family)
    model = transformers.AutoModelForCausalLM.from_pretrained(path / "hf")
    checkpoint = open_checkpoint(path / "model.gguf")
    last = model.model.layers[1]
    shift = 1.0 if family == "gemma3" else 0.0
    expected = {
        "embed": model.get_input_embeddings().weight,
        "head": model.get_output_embeddings().weight,
        "final_norm": model.model.norm.weight + shift,
        "layers.1.attn_norm": last.input_layernorm.weight + shift,
        "layers.1.q": last.self_attn.q_proj.weight,
        "layers.1.k": last.self_attn.k_proj.weight,
        "layers.1.v": last.self_attn.v_proj.weight,
        "layers.1.o": last.self_attn.o_proj.weight,
        "layers.1.gate": last.mlp.gate_proj.weight,
        "layers.1.up": last.mlp.up_proj.weight,
        "layers.1.down": last.mlp.down_proj.weight,
    }
    if family == "gemma3":
        expected["layers.1.mlp_norm"] = last.pre_feedforward_layernorm.weight + shift
        expected["layers.1.post_attn_norm"] = last.post_attention_layernorm.weight + shift
        expected["layers.1.post_mlp_norm"] = last.post_feedforward_layernorm.weight + shift
    else:
        expected["layers.1.mlp_norm"] = last.post_attention_layernorm.weight
    if family != "llama":
        expected["layers.1.q_norm"] = last.self_attn.q_norm.weight + shift
        expected["layers.1.k_norm"] = last.self_attn.k_norm.weight + shift
    for name, values in expected.items():
        np.testing.assert_array_equal(checkpoint.weight(name).float32(), values.detach().numpy(), err_msg=name)
    stored = {name for name in expected if name != "head" or not checkpoint.config.tied_embeddings}
    assert {name.replace("layers.0.", "layers.1.") for name in checkpoint.names()} == stored


@pytest.mark.parametrize("quantization", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "F16", "BF16"])
def test_quantised_rows_are_in_our_order(quantization: str, saved: Callable[[str], Path], tmp_path: Path) -> None:
    path = saved("llama")
    kind = gguf.GGMLQuantizationType[quantization]
    checkpoint = open_checkpoint(tiny_gguf(path / "hf", tmp_path / "q.gguf", quantization=quantization))
    exact = open_checkpoint(path / "hf")
    for name in exact.names():
        weight, values = checkpoint.weight(name), exact.weight(name).float32()
        if values.ndim == 1:
            np.testing.assert_array_equal(weight.float32(), values)
            continue
        expected = gguf.quants.quantize(values, kind)  # row by row, so it commutes with any order of rows
        blocks = weight.blocks()
        assert weight.format == quantization
        np.testing.assert_array_equal(weight.float32(), gguf.quants.dequantize(expected, kind), err_msg=name)
        if quantization in ("F16", "BF16"):
            assert blocks is None
        else:
            assert blocks is not None
            np.testing.assert_array_equal(blocks, expected, err_msg=name)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_and_shards(dtype: torch.dtype, saved: Callable[[str], Path], tmp_path: Path) -> None:
    source = saved("qwen3") / "hf"
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    model.save_pretrained(tmp_path, max_shard_size="50KB")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, tmp_path)
    shards = sorted(tmp_path.glob("*.safetensors"))
    assert len(shards) > 2
    checkpoint, exact = open_checkpoint(tmp_path), open_checkpoint(source)
    assert checkpoint.config == exact.config
    for name in exact.names():
        rounded = torch.from_numpy(exact.weight(name).float32()).to(dtype).float().numpy()
        np.testing.assert_array_equal(checkpoint.weight(name).float32(), rounded, err_msg=name)
    assert checkpoint.sha256 != exact.sha256
    shards[1].unlink()
    with pytest.raises(ModelError, match=f"the index names {shards[1].name}, which is not there"):
        open_checkpoint(tmp_path)


def test_the_text_part_of_a_multimodal_model(saved: Callable[[str], Path], tmp_path: Path) -> None:
    text = transformers.AutoConfig.from_pretrained(saved("gemma3") / "hf")
    vision = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.Gemma3Config(
        text_config=text.to_dict(), vision_config=vision | {"image_size": 28, "patch_size": 14}, mm_tokens_per_image=1
    )
    model = transformers.Gemma3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    shutil.copy(saved("gemma3") / "hf" / "tokenizer.json", tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config == open_checkpoint(saved("gemma3") / "hf").config
    down = model.model.language_model.layers[0].mlp.down_proj.weight.detach().numpy()
    np.testing.assert_array_equal(checkpoint.weight("layers.0.down").float32(), down)
    assert 2 in checkpoint.tokenizer.eos_ids


def test_llama3_scaling_is_that_of_transformers(saved: Callable[[str], Path]) -> None:
    path = saved("llama3")
    config = open_checkpoint(path / "model.gguf").config
    assert config.rope_scaling == RopeScaling("llama3", 8.0, 1.0, 4.0, 8192)
    divisors = gguf_tensor(path / "model.gguf", "rope_freqs.weight")
    assert len(set(divisors.round(3))) > 3  # both ends and the slope between them
    np.testing.assert_allclose(llama3_divisors(config.rope_scaling, 500000.0, 64), divisors, rtol=1e-5)


def gguf_tensor(path: Path, name: str) -> np.ndarray:
    return next(tensor.data for tensor in gguf.GGUFReader(path).tensors if tensor.name == name)


def test_names_and_digests(saved: Callable[[str], Path]) -> None:
    import hashlib

    path = saved("llama")
    directory, file = both(path)
    assert (directory.name, file.name) == ("hf", "tiny llama")
    assert file.sha256 == hashlib.sha256((path / "model.gguf").read_bytes()).hexdigest()
    assert directory.sha256 == hashlib.sha256((path / "hf" / "model.safetensors").read_bytes()).hexdigest()
    for checkpoint in (directory, file):
        with pytest.raises(KeyError, match=r"no tensor 'layers.2.q'"):
            checkpoint.weight("layers.2.q")


def test_a_hub_snapshot_bears_the_hubs_name(saved: Callable[[str], Path], tmp_path: Path) -> None:
    snapshot = tmp_path / "models--some-org--some-model" / "snapshots" / "0123abc"
    shutil.copytree(saved("llama") / "hf", snapshot)
    assert open_checkpoint(snapshot).name == "some-org/some-model"


def test_chat_templates_lie_in_several_places(saved: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(saved("llama") / "hf", tmp_path / "hf")
    config = tmp_path / "hf" / "tokenizer_config.json"
    config.write_text(json.dumps({"chat_template": None}))
    assert open_checkpoint(tmp_path / "hf").chat_template is None
    several = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    config.write_text(json.dumps({"chat_template": several}))
    assert open_checkpoint(tmp_path / "hf").chat_template == "D"
    (tmp_path / "hf" / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert open_checkpoint(tmp_path / "hf").chat_template == "J"
    (tmp_path / "hf" / "chat_template.jinja").write_text("X")
    assert open_checkpoint(tmp_path / "hf").chat_template == "X"


def test_generation_config_names_further_ends(saved: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(saved("llama") / "hf", tmp_path / "hf")
    (tmp_path / "hf" / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 7]}))
    assert open_checkpoint(tmp_path / "hf").tokenizer.eos_ids == {0, 2, 7}


@pytest.mark.model
def test_the_default_model(default_model_path: Path) -> None:
    checkpoint = open_checkpoint(default_model_path)
    config = checkpoint.config
    assert (config.family, config.layers, config.heads, config.kv_heads, config.head_dim) == ("llama", 30, 9, 3, 64)
    assert (config.rope_theta, config.norm_eps, config.tied_embeddings) == (100000.0, 1e-05, True)
    assert checkpoint.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert checkpoint.weight("head").shape == (49152, 576)
    assert checkpoint.weight("layers.29.down").format == "Q4_1"
    assert checkpoint.chat_template is not None
