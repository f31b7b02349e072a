"""Random models of any shape, in memory, and what they compute, in double precision."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import numpy as np

from decodeloop.engine.models import ModelConfig
from decodeloop.engine.models.names import tensor_shapes

SHAPES = {
    "llama": {"heads": 6, "kv_heads": 2, "head_dim": 20, "tied_embeddings": False},
    "qwen3": {"heads": 4, "kv_heads": 4, "head_dim": 32, "qk_norm": True, "attention_bias": True},
    "gemma3": {
        "heads": 4,
        "kv_heads": 1,
        "head_dim": 48,
        "qk_norm": True,
        "post_norms": True,
        "activation": "gelu_tanh",
        "embedding_scale": 8.5,
        "query_scale": 0.2,
        "sliding_window": 40,
        "window_layers": (True, False),
        "rope_theta_window": 700.0,
        "attention_softcap": 20.0,
        "final_softcap": 9.0,
    },
}


def invented_config(family: str, **changes) -> ModelConfig:
    """Two layers, in sizes that fill neither a vector nor a group nor a unit of 32 outputs."""
    sizes = {
        "family": family,
        "vocab_size": 71,
        "hidden_size": 56,
        "layers": 2,
        "ffn_size": 72,
        "max_context": 1024,
        "norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "activation": "silu",
        "tied_embeddings": True,
    }
    own = SHAPES[family] | changes
    return ModelConfig(**({"query_scale": own["head_dim"] ** -0.5} | sizes | own))


@dataclass(frozen=True)
class InventedWeight:
    values: np.ndarray  # as they are held: of a quantised weight, what its blocks stand for
    format: str = "F32"
    packed: np.ndarray | None = None

    @property
    def shape(self):
        return self.values.shape

    def float32(self):
        return self.values.copy()

    def blocks(self):
        return self.packed


@dataclass
class InventedCheckpoint:
    """A Checkpoint without a tokenizer. formats: name of a matrix -> its GGUF format; others are F32."""

    config: ModelConfig
    seed: int = 0
    formats: dict[str, str] = field(default_factory=dict)
    name: str = "invented"
    path: Path = Path("invented")
    chat_template: None = None
    tokenizer: None = None
    sha256: str = ""

    def __post_init__(self):
        rng = np.random.default_rng(self.seed)
        shapes = tensor_shapes(self.config)
        if self.config.attention_bias:
            shapes |= {f"layers.{i}.o_bias": (self.config.hidden_size,) for i in range(self.config.layers)}
        self.weights = {name: self._invent(rng, name, shape) for name, shape in shapes.items()}

    def _invent(self, rng, name, shape):
        if len(shape) == 1:
            scale, offset = (0.3, 0.0) if "bias" in name else (0.2, 1.0)
            return InventedWeight((offset + scale * rng.standard_normal(shape)).astype(np.float32))
        values = (rng.standard_normal(shape) * 1.5 / math.sqrt(shape[1])).astype(np.float32)
        kind = self.formats.get(name)
        if kind is None:
            return InventedWeight(values)
        quantization = gguf.GGMLQuantizationType[kind]
        packed = gguf.quants.quantize(values, quantization)
        return InventedWeight(gguf.quants.dequantize(packed, quantization), kind, packed.view(np.uint8))

    def names(self) -> Iterator[str]:
        return iter(self.weights)

    def weight(self, name):
        return self.weights["embed" if name == "head" and self.config.tied_embeddings else name]


def expected(checkpoint: InventedCheckpoint, tokens, layers: int | None = None) -> list[np.ndarray]:
    """[T, H] after the embedding and after each layer, then [T, V] the logits, of one text."""
    c = checkpoint.config
    layers = c.layers if layers is None else layers

    def weight(name):
        return checkpoint.weight(name).float32().astype(np.float64)

    def norm(x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + c.norm_eps) * weight(name)

    x = weight("embed")[np.asarray(tokens)] * c.embedding_scale
    states = [x]
    for index in range(layers):
        at = f"layers.{index}."
        out = _attention(c, weight, norm, index, norm(x, at + "attn_norm"))
        x = x + (norm(out, at + "post_attn_norm") if c.post_norms else out)
        y = norm(x, at + "mlp_norm")
        out = (_activation(c, y @ weight(at + "gate").T) * (y @ weight(at + "up").T)) @ weight(at + "down").T
        x = x + (norm(out, at + "post_mlp_norm") if c.post_norms else out)
        states.append(x)
    logits = norm(x, "final_norm") @ weight("head").T
    return [*states, _cap(logits, c.final_softcap)]


def _attention(c, weight, norm, index, x):
    count, at = len(x), f"layers.{index}."

    def heads(part, number):
        bias = weight(f"{at}{part}_bias") if c.attention_bias else 0.0
        return (x @ weight(at + part).T + bias).reshape(count, number, c.head_dim)

    q, k, v = heads("q", c.heads), heads("k", c.kv_heads), heads("v", c.kv_heads)
    if c.qk_norm:
        q, k = norm(q, at + "q_norm"), norm(k, at + "k_norm")
    windowed = bool(c.window_layers) and c.window_layers[index]
    theta = c.rope_theta_window if windowed and c.rope_theta_window else c.rope_theta
    q, k = _rotated(q, theta), _rotated(k, theta)
    k, v = (np.repeat(part, c.heads // c.kv_heads, axis=1) for part in (k, v))
    scores = _cap(np.einsum("qhd,khd->hqk", q, k) * c.query_scale, c.attention_softcap)
    behind = np.arange(count)[:, None] - np.arange(count)[None]
    hidden = (behind < 0) | (behind >= c.sliding_window if windowed else False)
    weights = np.exp(scores - np.where(hidden, -np.inf, scores).max(-1, keepdims=True)) * ~hidden
    out = np.einsum("hqk,khd->qhd", weights / weights.sum(-1, keepdims=True), v).reshape(count, -1)
    return out @ weight(at + "o").T + (weight(at + "o_bias") if c.attention_bias else 0.0)


def _rotated(heads, theta):
    half = heads.shape[-1] // 2
    angles = np.arange(len(heads))[:, None, None] * theta ** (-np.arange(half) / half)
    first, second = heads[..., :half], heads[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], -1)


def _activation(c, x):
    if c.activation == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _cap(x, cap):
    return x if cap is None else cap * np.tanh(x / cap)
