"""A checkpoint's tensors in the layouts of the compiled kernels."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine import kernels
from decodeloop.engine.models import Checkpoint, ModelConfig, Weight
from decodeloop.engine.models.rope import rope_frequencies

DTYPES = ("auto", "fp32", "bf16", "int8", "int4")
_ALIASES = {"float32": "fp32", "bfloat16": "bf16"}
_OWN_BLOCKS = {"Q4_0": "int4", "Q4_1": "int4", "Q4_K": "int4", "Q8_0": "int8"}
_EXACT_BLOCKS = ("Q4_0", "Q4_1", "Q8_0")  # which the kernels also read as the floats that they stand for
_OWN_FLOATS = {"F32": "fp32", "F16": "bf16", "BF16": "bf16"}
_MATRICES = ("q", "k", "v", "o", "gate", "up", "down")  # in the order that a step reads them


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """weights: the compiled module's Weights. format: for people. kv_format: of keys and values.

    huge_pages: whether the system gave them for most of the weights, as it was asked; without, reading takes longer.
    """

    weights: Any
    format: str
    kv_format: str
    huge_pages: bool


def load_weights(checkpoint: Checkpoint, *, dtype: str, layers: int, isa: str, threads: int) -> LoadedWeights:
    """The first `layers` layers, final norm and head.

    dtype: one of DTYPES. isa: the kernels' name, "" for the best that the machine runs.

    Raises:
        ValueError: no such dtype or kernels, or a model whose shape the kernels don't take.
        KeyError: a tensor that the checkpoint lacks.
    """
    dtype = _ALIASES.get(dtype, dtype)
    if dtype not in DTYPES:
        raise ValueError(f"native: no dtype {dtype!r}; choose from {', '.join(DTYPES)}")
    config, native = checkpoint.config, kernels.load()
    huge_before = native.huge_page_bytes()
    loader = _Loader(checkpoint, dtype, native.Weights(_shape(config, layers), isa, threads))
    for index in range(layers):
        loader.layer(index)
    loader.vector("final_norm")
    loader.matrix("embed", is_head=True)
    if not config.tied_embeddings:
        loader.matrix("head", is_head=True)
    ordinary, window = rope_frequencies(config)
    loader.weights.set_frequencies(ordinary.tolist(), window.tolist())
    huge = native.huge_page_bytes() - huge_before
    return LoadedWeights(
        weights=loader.weights,
        format=loader.format(),
        kv_format="fp32" if set(loader.held) == {"fp32"} else "bf16",
        huge_pages=2 * huge > loader.weights.nbytes,
    )


def format_of(dtype: str, weight: Weight, *, is_head: bool) -> str:
    """How a matrix is held: fp32, bf16, int8 or int4."""
    if dtype == "auto":
        return _OWN_BLOCKS.get(weight.format) or _OWN_FLOATS.get(weight.format, "int8")
    return "int8" if dtype == "int4" and is_head else dtype


class _Loader:
    def __init__(self, checkpoint: Checkpoint, dtype: str, weights: Any) -> None:
        self._checkpoint, self._dtype, self.weights = checkpoint, dtype, weights
        self._names = set(checkpoint.names())
        self.held: Counter[str] = Counter()  # weights in each format

    def layer(self, index: int) -> None:
        config, at = self._checkpoint.config, f"layers.{index}."
        vectors = ["attn_norm", "mlp_norm"]
        vectors += ["q_norm", "k_norm"] if config.qk_norm else []
        vectors += ["post_attn_norm", "post_mlp_norm"] if config.post_norms else []
        vectors += ["q_bias", "k_bias", "v_bias"] if config.attention_bias else []
        vectors += ["o_bias"] if at + "o_bias" in self._names else []
        for part in vectors:
            self.vector(at + part)
        for part in _MATRICES:
            self.matrix(at + part)

    def vector(self, name: str) -> None:
        self.weights.add_vector(name, self._checkpoint.weight(name).float32())

    def matrix(self, name: str, *, is_head: bool = False) -> None:
        weight = self._checkpoint.weight(name)
        form = format_of(self._dtype, weight, is_head=is_head)
        self.held[form] += weight.shape[0] * weight.shape[1]
        own = _OWN_BLOCKS.get(weight.format)
        blocks = weight.blocks() if own == form or weight.format in _EXACT_BLOCKS else None
        if blocks is not None:
            self.weights.add_blocks(name, form, weight.format, np.ascontiguousarray(blocks))
        else:
            self.weights.add_floats(name, form, _contiguous(weight.float32()))

    def format(self) -> str:
        return " + ".join(form for form, _ in self.held.most_common())


def _contiguous(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return np.ascontiguousarray(values, dtype=np.float32)


def _shape(config: ModelConfig, layers: int) -> dict[str, Any]:
    """The kernels' own words for a model's shape."""
    windows = config.window_layers if config.sliding_window else ()
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "layers": layers,
        "heads": config.heads,
        "kv_heads": config.kv_heads,
        "head_dim": config.head_dim,
        "ffn_size": config.ffn_size,
        "max_context": config.max_context,
        "norm_eps": config.norm_eps,
        "activation": config.activation,
        "tied_embeddings": config.tied_embeddings,
        "qk_norm": config.qk_norm,
        "post_norms": config.post_norms,
        "attention_bias": config.attention_bias,
        "embedding_scale": config.embedding_scale,
        "query_scale": config.query_scale,
        "window": config.sliding_window or 0,
        "window_layers": list(windows[:layers]),
        "attention_softcap": config.attention_softcap or 0.0,
        "final_softcap": config.final_softcap or 0.0,
    }
