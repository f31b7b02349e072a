"""Tiny random models: real architectures, seconds to make, saved as Hugging Face directories and as GGUF files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

MARKERS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_LETTERS = " \nabcdefghijklmnopqrstuvwxyz0123456789{}[]():;,.\"'=_+-*/<>!?|ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_CORPUS = ["the cat sat on the mat", "def add(a, b): return a + b", '{"name": "value", "list": [1, 2, 3]}'] * 4


def tiny_hf(family: str, path: Path, *, vocab_size: int = 64, seed: int = 0, layers: int = 2, **config: Any) -> Path:
    """Save a random model of `family` (llama, qwen3 or gemma3) with a tokenizer into the directory `path`; float32.

    Below 259 entries the vocabulary covers a part of ASCII only, and other characters are dropped by the tokenizer.
    config: further fields of the transformers configuration.
    """
    import torch
    import transformers

    sizes = {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 512,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "initializer_range": 0.15,
    }
    classes = {
        "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {"tie_word_embeddings": True}),
        "qwen3": (transformers.Qwen3Config, transformers.Qwen3ForCausalLM, {"head_dim": 32}),
        "gemma3": (
            transformers.Gemma3TextConfig,
            transformers.Gemma3ForCausalLM,
            {"head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 8, "layer_types": _gemma_layers(layers)},
        ),
    }
    config_class, model_class, own = classes[family]
    torch.manual_seed(seed)
    model = model_class(config_class(**(sizes | own | config))).eval()
    with torch.no_grad():  # norms start as ones (zeros): a loader that drops or shifts them must not go unnoticed
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    model.save_pretrained(path)
    tiny_tokenizer(family, vocab_size).save(str(path / "tokenizer.json"))
    words = {"bos_token": MARKERS[1], "eos_token": MARKERS[2], "add_bos_token": False, "chat_template": CHAT_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(words))
    return path


def _gemma_layers(layers: int) -> list[str]:
    return ["full_attention" if index % 2 else "sliding_attention" for index in range(layers)]


def tiny_tokenizer(family: str, vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer of exactly `vocab_size` entries that cuts words as the family does."""
    tokenizer = Tokenizer(models.BPE())
    cut: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    if family == "llama":
        cut.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cut)
    tokenizer.decoder = decoders.ByteLevel()
    markers = [AddedToken(marker, special=True, normalized=False) for marker in MARKERS]
    letters = _byte_letters(vocab_size - len(MARKERS))
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=markers,
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    unused = vocab_size - tokenizer.get_vocab_size()
    tokenizer.add_special_tokens([f"<|unused_{index}|>" for index in range(unused)])
    return tokenizer


def _byte_letters(room: int) -> list[str]:
    if room >= 256:
        return sorted(pre_tokenizers.ByteLevel.alphabet())
    cut = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [cut.pre_tokenize_str(letter)[0][0] for letter in _LETTERS[:room]]


def tiny_gguf(hf_dir: Path, path: Path, *, quantization: str = "F32") -> Path:
    """Write the model in `hf_dir` as one GGUF, matrices in `quantization`, as a converter would have done."""
    from safetensors.numpy import load_file

    config = json.loads((hf_dir / "config.json").read_text())
    family = {"gemma3_text": "gemma3"}.get(config["model_type"], config["model_type"])
    writer = gguf.GGUFWriter(path, family)
    writer.add_name(f"tiny {family}")
    _write_config(writer, config)
    _write_tokenizer(writer, hf_dir, config)
    kind = gguf.GGMLQuantizationType[quantization]
    for name, values in load_file(hf_dir / "model.safetensors").items():
        stored, shaped = _stored_tensor(family, config, name, values)
        if shaped.ndim == 2 and quantization != "F32":
            writer.add_tensor(stored, gguf.quants.quantize(shaped, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored, np.ascontiguousarray(shaped))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _write_config(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    for key, write in (
        ("attn_logit_softcapping", writer.add_attn_logit_softcapping),
        ("final_logit_softcapping", writer.add_final_logit_softcapping),
    ):
        if config.get(key):
            write(config[key])
    if rope.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _llama3_divisors(config))
    if config["model_type"] == "gemma3_text":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])


def _llama3_divisors(config: dict[str, Any]) -> np.ndarray:
    """What Llama 3's scaling divides each frequency by, as transformers computes it."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    parsed = transformers.LlamaConfig(**config)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](parsed, "cpu")
    steps = np.arange(0, config["head_dim"], 2) / config["head_dim"]
    return np.asarray(config["rope_parameters"]["rope_theta"] ** -steps / scaled.numpy(), dtype=np.float32)


def _write_tokenizer(writer: gguf.GGUFWriter, hf_dir: Path, config: dict[str, Any]) -> None:
    tokenizer = Tokenizer.from_file(str(hf_dir / "tokenizer.json"))
    added = tokenizer.get_added_tokens_decoder()
    size = tokenizer.get_vocab_size()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm" if config["model_type"] == "llama" else "gpt-2")
    writer.add_token_list([tokenizer.id_to_token(id_) for id_ in range(size)])
    writer.add_token_types([3 if id_ in added else 1 for id_ in range(size)])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


_STORED_NAMES = {
    "model.embed_tokens": "token_embd",
    "lm_head": "output",
    "model.norm": "output_norm",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _stored_tensor(family: str, config: dict[str, Any], name: str, values: np.ndarray) -> tuple[str, np.ndarray]:
    base, _, ending = name.rpartition(".")
    names = _STORED_NAMES | {"post_attention_layernorm": "post_attention_norm" if family == "gemma3" else "ffn_norm"}
    if base.startswith("model.layers."):
        _, _, layer, part = base.split(".", 3)
        stored = f"blk.{layer}.{names[part]}.{ending}"
    else:
        stored = f"{names[base]}.{ending}"
    if family == "gemma3" and "norm" in name:
        values = values + 1
    if family == "llama" and ("q_proj" in name or "k_proj" in name):
        heads = config["num_attention_heads" if "q_proj" in name else "num_key_value_heads"]
        rows = values.shape[0] // heads
        halves = values.reshape(heads, 2, rows // 2, *values.shape[1:])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    return stored, values
