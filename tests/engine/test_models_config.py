"""config.json as published over the years, read as transformers reads it."""

from __future__ import annotations

from typing import Any

import pytest
import transformers

from decodeloop.engine.models import ModelConfig, ModelError, RopeScaling
from decodeloop.engine.models.config_gguf import config_from_gguf
from decodeloop.engine.models.config_huggingface import config_from_huggingface

SMOLLM2: dict[str, Any] = {
    "model_type": "llama",
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "rope_theta": 100000,
    "tie_word_embeddings": True,
    "vocab_size": 49152,
}
LLAMA3: dict[str, Any] = SMOLLM2 | {
    "rope_theta": 500000.0,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    },
}
QWEN3: dict[str, Any] = SMOLLM2 | {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "head_dim": 128,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "max_window_layers": 28,
    "sliding_window": None,
    "use_sliding_window": False,
    "rope_theta": 1000000,
    "vocab_size": 151936,
}
GEMMA3_TEXT: dict[str, Any] = {
    "model_type": "gemma3_text",
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
GEMMA3_4B = {"model_type": "gemma3", "text_config": GEMMA3_TEXT, "vision_config": {"hidden_size": 1152}}
WINDOWED = QWEN3 | {"use_sliding_window": True, "sliding_window": 128, "max_window_layers": 20}
PUBLISHED = {
    "smollm2": SMOLLM2,
    "llama3": LLAMA3,
    "qwen3": QWEN3,
    "windowed": WINDOWED,
    "gemma3": GEMMA3_TEXT | {"query_pre_attn_scalar": 168, "final_logit_softcapping": 30.0},
    "sparse": {**{key: SMOLLM2[key] for key in ("model_type", "hidden_size", "num_attention_heads", "vocab_size")},
               "intermediate_size": 1536, "num_hidden_layers": 2},
}  # fmt: skip


@pytest.mark.parametrize("which", PUBLISHED)
def test_a_configuration_means_what_transformers_makes_of_it(which: str) -> None:
    raw = PUBLISHED[which]
    ours = config_from_huggingface(raw)
    theirs: Any = transformers.AutoConfig.for_model(**raw)
    gemma = ours.family == "gemma3"
    rope = theirs.rope_parameters["full_attention"] if gemma else theirs.rope_parameters
    window = [kind == "sliding_attention" for kind in getattr(theirs, "layer_types", None) or []]
    head_dim = getattr(theirs, "head_dim", None) or theirs.hidden_size // theirs.num_attention_heads
    assert ours == ModelConfig(
        family={"gemma3_text": "gemma3"}.get(theirs.model_type, theirs.model_type),
        vocab_size=theirs.vocab_size,
        hidden_size=theirs.hidden_size,
        layers=theirs.num_hidden_layers,
        heads=theirs.num_attention_heads,
        kv_heads=theirs.num_key_value_heads,
        head_dim=head_dim,
        ffn_size=theirs.intermediate_size,
        max_context=theirs.max_position_embeddings,
        norm_eps=theirs.rms_norm_eps,
        rope_theta=rope["rope_theta"],
        activation="gelu_tanh" if gemma else "silu",
        tied_embeddings=theirs.tie_word_embeddings,
        qk_norm=ours.family != "llama",
        post_norms=gemma,
        embedding_scale=theirs.hidden_size**0.5 if gemma else 1.0,
        query_scale=(theirs.query_pre_attn_scalar if gemma else head_dim) ** -0.5,
        sliding_window=theirs.sliding_window if any(window) else None,
        window_layers=tuple(window) if any(window) else (),
        rope_theta_window=theirs.rope_parameters["sliding_attention"]["rope_theta"] if gemma else None,
        rope_scaling={"llama3": RopeScaling("llama3", 32.0, 1.0, 4.0, 8192), "gemma3": RopeScaling("linear", 8.0)}.get(
            which
        ),
        final_softcap=30.0 if gemma else None,
    )


def test_a_multimodal_configuration_is_its_text_part() -> None:
    assert config_from_huggingface(GEMMA3_4B) == config_from_huggingface(GEMMA3_TEXT)
    assert sum(config_from_huggingface(GEMMA3_4B).window_layers) == 29


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"model_type": "mamba"}, "no architecture 'mamba'; choose a model of llama, qwen3, gemma3"),
        ({}, "no architecture None"),
        ({"model_type": "llama"}, "config.json lacks num_attention_heads"),
        (SMOLLM2 | {"vocab_size": None}, "config.json lacks vocab_size"),
        (SMOLLM2 | {"hidden_act": "relu"}, "no activation 'relu'; known are silu"),
        (SMOLLM2 | {"mlp_bias": True}, "says mlp_bias"),
        (SMOLLM2 | {"num_attention_heads": 0}, "num_attention_heads is '0', not a count"),
        (SMOLLM2 | {"hidden_size": "wide"}, "hidden_size is 'wide', not a count"),
        (SMOLLM2 | {"num_attention_heads": 5000}, "5000 heads in a width of 576 cannot be right"),
        (SMOLLM2 | {"quantization_config": {"quant_method": "awq"}}, "use the original or a GGUF"),
        (SMOLLM2 | {"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "no rope scaling 'yarn'; known are default"),
        (SMOLLM2 | {"rope_scaling": {"rope_type": "llama3", "factor": 4}}, "lacks low_freq_factor of its llama3"),
        (WINDOWED | {"layer_types": ["full_attention"]}, "names 1 layer_types for 30 layers"),
        (GEMMA3_TEXT | {"use_bidirectional_attention": True}, "says use_bidirectional_attention"),
    ],
)
def test_a_configuration_that_cannot_be_run_is_refused(raw: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        config_from_huggingface(raw)


GGUF_KEYS: dict[str, Any] = {
    "general.architecture": "gemma3",
    "gemma3.block_count": 12,
    "gemma3.context_length": 32768,
    "gemma3.embedding_length": 640,
    "gemma3.feed_forward_length": 2048,
    "gemma3.attention.head_count": 4,
    "gemma3.attention.head_count_kv": 1,
    "gemma3.attention.key_length": 256,
    "gemma3.attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "gemma3.attention.sliding_window": 512,
}


def gguf_config(**changed: Any) -> ModelConfig:
    metadata = GGUF_KEYS | {f"gemma3.{key}".replace("__", "."): value for key, value in changed.items()}
    return config_from_gguf(metadata, vocab_size=8, tied_embeddings=True, attention_bias=False, rope_factors=None)


def test_what_older_gemma_ggufs_leave_out() -> None:
    config = gguf_config()
    assert config.window_layers == (True, True, True, True, True, False) * 2
    assert (config.rope_theta, config.rope_theta_window, config.norm_eps) == (1e6, 1e4, 1e-6)
    assert config.query_scale == 256**-0.5
    linear = gguf_config(rope__scaling__type="linear", rope__scaling__factor=8.0)
    assert linear.rope_scaling == RopeScaling("linear", 8.0)


def test_the_27b_gemma_scales_queries_by_its_width() -> None:
    config = gguf_config(block_count=62, embedding_length=5376, attention__head_count=32, attention__key_length=128)
    assert config.query_scale == 168**-0.5


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"block_count": None}, "the metadata lack gemma3.block_count"),
        ({"block_count": "two"}, "gemma3.block_count is 'two', not a number"),
        ({"block_count": 1.5}, "gemma3.block_count is 1.5, not a whole number"),
        ({"block_count": 1 << 39}, "4 heads in 549755813888 layers cannot be right"),
        ({"attention__head_count": 0}, "0 heads"),
        ({"attention__head_count": 641, "attention__key_length": 0}, "641 heads in a width of 640 cannot be right"),
        ({"embedding_length": 0}, "4 heads in a width of 0 cannot be right"),
        ({"attention__head_count_kv": [1, 2]}, r"head_count_kv is '\[1, 2\]'"),
        ({"expert_count": 8}, "a mixture of 8 experts"),
        ({"rope__scaling__type": "yarn"}, "no rope scaling 'yarn'; known are none, linear and llama3"),
        ({"attention__sliding_window_pattern": [True]}, "does not say which of 12 layers"),
    ],
)
def test_metadata_that_cannot_be_run_are_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ModelError, match=says):
        gguf_config(**changed)
