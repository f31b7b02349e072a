"""Which tensors a model has, their shapes, and what each format calls them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from decodeloop.engine.models import ModelConfig, ModelError

GGUF_TOP = {"embed": "token_embd.weight", "head": "output.weight", "final_norm": "output_norm.weight"}
GGUF_LAYER = {
    "attn_norm": "attn_norm.weight",
    "q": "attn_q.weight",
    "k": "attn_k.weight",
    "v": "attn_v.weight",
    "o": "attn_output.weight",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate": "ffn_gate.weight",
    "up": "ffn_up.weight",
    "down": "ffn_down.weight",
    "post_attn_norm": "post_attention_norm.weight",
    "post_mlp_norm": "post_ffw_norm.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
}
HUGGINGFACE_TOP = {"embed": "embed_tokens.weight", "head": "lm_head.weight", "final_norm": "norm.weight"}
HUGGINGFACE_LAYER = {
    "attn_norm": "input_layernorm.weight",
    "q": "self_attn.q_proj.weight",
    "k": "self_attn.k_proj.weight",
    "v": "self_attn.v_proj.weight",
    "o": "self_attn.o_proj.weight",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate": "mlp.gate_proj.weight",
    "up": "mlp.up_proj.weight",
    "down": "mlp.down_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
}
# With norms after attention and MLP too, "post_attention_layernorm" is no longer the one before the MLP.
HUGGINGFACE_POST_NORMS = {
    "mlp_norm": "pre_feedforward_layernorm.weight",
    "post_attn_norm": "post_attention_layernorm.weight",
    "post_mlp_norm": "post_feedforward_layernorm.weight",
}


def gguf_name(name: str) -> str:
    """What a GGUF calls our tensor `name`."""
    if name in GGUF_TOP:
        return GGUF_TOP[name]
    _, layer, part = name.split(".")
    return f"blk.{layer}.{GGUF_LAYER[part]}"


def huggingface_name(name: str, config: ModelConfig) -> str:
    """What a Hugging Face model of this family calls our tensor `name`, below its text model's prefix."""
    if name in HUGGINGFACE_TOP:
        return HUGGINGFACE_TOP[name]
    _, layer, part = name.split(".")
    parts = HUGGINGFACE_LAYER | (HUGGINGFACE_POST_NORMS if config.post_norms else {})
    return f"layers.{layer}.{parts[part]}"


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The tensors that a model of this configuration must have, a tied head left out."""
    hidden, ffn = config.hidden_size, config.ffn_size
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "mlp_norm": (hidden,),
        "gate": (ffn, hidden),
        "up": (ffn, hidden),
        "down": (hidden, ffn),
    }
    if config.qk_norm:
        layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
    if config.post_norms:
        layer |= {"post_attn_norm": (hidden,), "post_mlp_norm": (hidden,)}
    if config.attention_bias:
        layer |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab_size, hidden), "final_norm": (hidden,)}
    if not config.tied_embeddings:
        shapes["head"] = (config.vocab_size, hidden)
    for index in range(config.layers):
        shapes |= {f"layers.{index}.{part}": shape for part, shape in layer.items()}
    return shapes


def possible_tensors(config: ModelConfig) -> list[str]:
    """Those of `tensor_shapes`, and what may be there besides: biases of o."""
    return [*tensor_shapes(config), *(f"layers.{index}.o_bias" for index in range(config.layers))]


class StoredTensor(Protocol):
    """name: the file's."""

    @property
    def name(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...


def check_tensors(origin: str, config: ModelConfig, stored: Mapping[str, StoredTensor]) -> None:
    """Compare what a file has, by our names, with what its configuration needs.

    Raises:
        ModelError: tensors are missing (all named) or one has another shape.
    """
    needed = tensor_shapes(config)
    missing = [name for name in needed if name not in stored]
    if missing:
        raise ModelError(f"{origin}: a {config.family} model of {config.layers} layers lacks {_some(missing)}")
    for name, shape in needed.items():
        found = stored[name]
        if found.shape != shape:
            raise ModelError(
                f"{origin}: tensor {found.name} is {list(found.shape)}; the configuration says {list(shape)}"
            )


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:5]) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")
