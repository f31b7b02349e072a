"""The same weights in the forms that other engines read: a directory of transformers, and GGUFs of other formats."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import torch
from safetensors.torch import save_file

from decodeloop.engine.models import Checkpoint
from decodeloop.engine.models.names import huggingface_name

FORMATS = {"BF16": [], "Q4_0": ["--pure"]}


def write_huggingface(checkpoint: Checkpoint, directory: Path) -> Path:
    """A Llama checkpoint as transformers reads it, in bfloat16; no tokenizer: prompts are token ids."""
    config = checkpoint.config
    if config.family != "llama":
        raise ValueError(f"only llama checkpoints are written for transformers, not {config.family}")
    directory.mkdir(parents=True, exist_ok=True)
    ends = sorted(checkpoint.tokenizer.eos_ids)
    shape = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.ffn_size,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "num_key_value_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_context,
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "hidden_act": config.activation,
        "tie_word_embeddings": config.tied_embeddings,
        "torch_dtype": "bfloat16",
        "bos_token_id": checkpoint.tokenizer.bos_id,
        "eos_token_id": ends,
    }
    weights = {
        f"model.{huggingface_name(name, config)}": torch.from_numpy(checkpoint.weight(name).float32()).to(
            torch.bfloat16
        )
        for name in checkpoint.names()
    }
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    (directory / "config.json").write_text(json.dumps(shape, indent=1))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    return directory


def write_gguf(source: Path, format: str, quantize: Path, directory: Path) -> Path:
    """`source`'s weights in another format, by llama.cpp's own tool."""
    target = directory / f"{source.stem}-{format}.gguf"
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = target.with_suffix(".partial")
        command = [quantize, "--allow-requantize", *FORMATS[format], source, partial, format]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        partial.rename(target)
    return target
