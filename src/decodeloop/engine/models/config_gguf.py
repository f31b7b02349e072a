"""A GGUF's metadata as a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelConfig, ModelError, RopeScaling

FAMILIES = ("llama", "qwen3", "gemma3")
_GEMMA3_WINDOW_PERIOD = 6  # five window layers, then a global one
_GEMMA3_27B_LAYERS = 62  # the one size whose query_pre_attn_scalar is not head_dim, which GGUF does not store


def config_from_gguf(
    metadata: Mapping[str, Any],
    *,
    vocab_size: int,
    tied_embeddings: bool,
    attention_bias: bool,
    rope_factors: npt.NDArray[np.float32] | None,
) -> ModelConfig:
    """Read `metadata`. rope_factors: [head_dim/2] of the tensor rope_freqs.weight, where there is one.

    Raises:
        ModelError: an unknown architecture, a missing key, or a rope scaling that our runners do not know.
    """
    family = metadata.get("general.architecture")
    if family not in FAMILIES:
        raise ModelError(f"no architecture {family!r}; choose a model of {', '.join(FAMILIES)}")
    keys = _Keys(metadata, family)
    if keys.get("expert_count", 0):
        raise ModelError(f"a mixture of {keys.get('expert_count', 0)} experts; only dense models are known")
    gemma = family == "gemma3"
    hidden, heads, layers = keys.need("embedding_length"), keys.need("attention.head_count"), keys.need("block_count")
    head_dim = keys.get("attention.key_length", None) or keys.get("rope.dimension_count", None) or hidden // heads
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.get("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_size=keys.need("feed_forward_length"),
        max_context=keys.need("context_length"),
        norm_eps=_shortest(keys.need("attention.layer_norm_rms_epsilon")),
        rope_theta=_shortest(keys.get("rope.freq_base", 1e6 if gemma else 1e4)),
        activation="gelu_tanh" if gemma else "silu",
        tied_embeddings=tied_embeddings,
        qk_norm=family in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        query_scale=_query_scale(keys, layers, hidden, heads, head_dim, gemma=gemma),
        rope_scaling=_rope_scaling(keys, rope_factors, head_dim),
        attention_softcap=keys.get("attn_logit_softcapping", None) or None,
        final_softcap=keys.get("final_logit_softcapping", None) or None,
        attention_bias=attention_bias,
        **(_gemma_window(keys, layers) if gemma else {}),
    )


class _Keys:
    """The metadata below an architecture's name."""

    def __init__(self, metadata: Mapping[str, Any], family: str) -> None:
        self._metadata, self._family = metadata, family

    def get(self, key: str, default: Any) -> Any:
        return self._metadata.get(f"{self._family}.{key}", default)

    def need(self, key: str) -> Any:
        name = f"{self._family}.{key}"
        if name not in self._metadata:
            raise ModelError(f"the metadata lack {name}")
        return self._metadata[name]


def _shortest(value: float) -> float:
    """The number that was meant: GGUF keeps 1e-05 as the float32 nearest to it, 9.99999974e-06."""
    return float(str(np.float32(value)))


def _query_scale(keys: _Keys, layers: int, hidden: int, heads: int, head_dim: int, *, gemma: bool) -> float:
    stored = keys.get("attention.scale", 0.0)
    if stored:
        return float(stored)
    if gemma and layers == _GEMMA3_27B_LAYERS:
        return float((hidden / heads) ** -0.5)
    return float(head_dim**-0.5)


def _gemma_window(keys: _Keys, layers: int) -> dict[str, Any]:
    window = keys.get("attention.sliding_window", None)
    if not window:
        return {}
    pattern = keys.get("attention.sliding_window_pattern", _GEMMA3_WINDOW_PERIOD)
    if isinstance(pattern, int):
        pattern = [(index + 1) % pattern != 0 for index in range(layers)]
    if len(pattern) != layers:
        raise ModelError(f"gemma3.attention.sliding_window_pattern has {len(pattern)} entries for {layers} layers")
    return {
        "sliding_window": window,
        "window_layers": tuple(bool(uses) for uses in pattern),
        "rope_theta_window": _shortest(keys.get("rope.freq_base_swa", 1e4)),
    }


def _rope_scaling(keys: _Keys, factors: npt.NDArray[np.float32] | None, head_dim: int) -> RopeScaling | None:
    if factors is not None:
        return _llama3_scaling(keys, factors, head_dim)
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", float(keys.need("rope.scaling.factor")))
    raise ModelError(f"no rope scaling {kind!r}; known are none, linear and llama3")


def _llama3_scaling(keys: _Keys, factors: npt.NDArray[np.float32], head_dim: int) -> RopeScaling | None:
    """GGUF stores Llama 3's scaling as the divisor of each frequency: find the one that gives these divisors."""
    theta = keys.get("rope.freq_base", 1e4)
    factor = float(factors.max())
    if factor == 1.0:
        return None
    scaling = RopeScaling("llama3", factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_context=8192)
    expected = llama3_divisors(scaling, theta, head_dim)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ModelError("rope_freqs.weight is not Llama 3's rope scaling (low 1, high 4, original context 8192)")
    return scaling


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> npt.NDArray[np.float64]:
    """[head_dim/2]: what each rotary frequency is divided by (Llama 3.1's rule: long waves by `factor`, short by 1)."""
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    waves = scaling.original_max_context * frequencies / (2 * np.pi)  # in the original context
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    smooth = np.clip((waves - low) / (high - low), 0.0, 1.0)
    return np.asarray(1.0 / ((1.0 - smooth) / scaling.factor + smooth))
