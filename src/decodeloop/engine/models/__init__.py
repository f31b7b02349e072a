"""Models on disk: their shape, their weights, their words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from decodeloop.engine.text import Tokenizer

__all__ = ["Checkpoint", "ModelConfig", "ModelError", "RopeScaling", "Weight"]


class ModelError(ValueError):
    """A model that cannot be found, fetched or read, in words its user can act on."""


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Llama-3 or linear scaling of the rotary frequencies. kind: "linear" or "llama3"."""

    kind: str
    factor: float
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_context: int = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A decoder-only transformer of the Llama, Qwen3 or Gemma3 family."""

    family: str  # llama, qwen3, gemma3
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn_size: int
    max_context: int
    norm_eps: float
    rope_theta: float
    query_scale: float  # attention scores are q.k * query_scale
    activation: str  # silu, gelu_tanh
    tied_embeddings: bool
    qk_norm: bool = False
    post_norms: bool = False  # gemma: norms after attention and mlp too
    embedding_scale: float = 1.0
    sliding_window: int | None = None  # positions a token of a window layer attends to, its own included
    window_layers: tuple[bool, ...] = ()  # which layers use the window (and rope_theta_window); empty: none
    rope_theta_window: float | None = None  # None: window layers rotate as the others do
    rope_scaling: RopeScaling | None = None  # never of layers that have rope_theta_window
    attention_softcap: float | None = None
    final_softcap: float | None = None
    attention_bias: bool = False  # q, k, v (and o, where stored) have biases


class Weight(Protocol):
    """A tensor on disk, read when asked. Names: embed, head, final_norm, layers.{i}.{attn_norm, q, k, v, o, q_norm,
    k_norm, mlp_norm, gate, up, down, post_attn_norm, post_mlp_norm, q_bias, k_bias, v_bias, o_bias}. Matrices are
    [out, in]; q and k rows (and biases) are in rotate-half order; gemma's norm weights have their +1 added."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def format(self) -> str:
        """F32, F16, BF16, Q4_0, Q4_1, Q8_0, Q4_K, Q6_K, ..."""
        ...

    def float32(self) -> npt.NDArray[np.float32]: ...

    def blocks(self) -> npt.NDArray[np.uint8] | None:
        """[out, bytes a row] as stored (rows already in our order), when the format is block-quantised along `in`."""
        ...


class Checkpoint(Protocol):
    """A model as loaded: everything a runner, a tokenizer and a template need."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tokenizer(self) -> Tokenizer: ...

    @property
    def chat_template(self) -> str | None:
        """Jinja; None: the model has none."""
        ...

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> Path: ...

    @property
    def sha256(self) -> str:
        """Of the weights; computed when first asked (about a second a GB)."""
        ...

    def names(self) -> Iterator[str]:
        """The tensors stored; a tied head is not among them."""
        ...

    def weight(self, name: str) -> Weight:
        """A tensor; a tied head is the embedding. Raises KeyError naming the tensor and the file."""
        ...
