"""A GGUF's metadata as a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelConfig, ModelError, RopeScaling
from decodeloop.engine.models.rope import frequencies

FAMILIES = ("llama", "qwen3", "gemma3")
_LARGEST = 1 << 40
_MOST_LAYERS = 10_000
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
    if experts := keys.integer("expert_count", 0):
        raise ModelError(f"a mixture of {experts} experts; only dense models are known")
    gemma = family == "gemma3"
    hidden, heads, layers = (
        keys.integer("embedding_length"),
        keys.integer("attention.head_count"),
        keys.integer("block_count"),
    )
    if not heads or layers > _MOST_LAYERS:
        raise ModelError(f"{heads} heads in {layers} layers cannot be right")
    head_dim = keys.integer("attention.key_length", 0) or keys.integer("rope.dimension_count", 0) or hidden // heads
    if not hidden or not head_dim:
        raise ModelError(f"{heads} heads in a width of {hidden} cannot be right")
    return ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=keys.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        ffn_size=keys.integer("feed_forward_length"),
        max_context=keys.integer("context_length"),
        norm_eps=keys.real("attention.layer_norm_rms_epsilon"),
        rope_theta=keys.real("rope.freq_base", 1e6 if gemma else 1e4),
        activation="gelu_tanh" if gemma else "silu",
        tied_embeddings=tied_embeddings,
        qk_norm=family in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        query_scale=_query_scale(keys, layers, hidden, heads, head_dim, gemma=gemma),
        rope_scaling=_rope_scaling(keys, rope_factors, head_dim),
        attention_softcap=keys.real("attn_logit_softcapping", 0.0) or None,
        final_softcap=keys.real("final_logit_softcapping", 0.0) or None,
        attention_bias=attention_bias,
        **(_gemma_window(keys, layers) if gemma else {}),
    )


class _Keys:
    """The metadata below an architecture's name. Without a default, a key must be there."""

    def __init__(self, metadata: Mapping[str, Any], family: str) -> None:
        self._metadata, self._family = metadata, family

    def get(self, key: str, default: Any = None) -> Any:
        return self._metadata.get(f"{self._family}.{key}", default)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._number(key, default)
        if value != int(value):
            raise ModelError(f"{self._family}.{key} is {value}, not a whole number")
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        """The number that was meant: GGUF keeps 1e-05 as the float32 nearest to it, 9.99999974e-06."""
        return float(str(np.float32(self._number(key, default))))

    def _number(self, key: str, default: float | None) -> float:
        value = self.get(key, default)
        if value is None:
            raise ModelError(f"the metadata lack {self._family}.{key}")
        if not isinstance(value, int | float) or not 0 <= value < _LARGEST:
            raise ModelError(f"{self._family}.{key} is {str(value)[:40]!r}, not a number that can be used")
        return value


def _query_scale(keys: _Keys, layers: int, hidden: int, heads: int, head_dim: int, *, gemma: bool) -> float:
    if stored := keys.real("attention.scale", 0.0):
        return stored
    if gemma and layers == _GEMMA3_27B_LAYERS:
        return float((hidden / heads) ** -0.5)
    return float(head_dim**-0.5)


def _gemma_window(keys: _Keys, layers: int) -> dict[str, Any]:
    window = keys.integer("attention.sliding_window", 0)
    if not window:
        return {}
    pattern = keys.get("attention.sliding_window_pattern", _GEMMA3_WINDOW_PERIOD)
    if isinstance(pattern, int) and pattern > 0:
        pattern = [(index + 1) % pattern != 0 for index in range(layers)]
    if not isinstance(pattern, list) or len(pattern) != layers:
        raise ModelError(
            f"gemma3.attention.sliding_window_pattern does not say which of {layers} layers use the window"
        )
    return {
        "sliding_window": window,
        "window_layers": tuple(bool(uses) for uses in pattern),
        "rope_theta_window": keys.real("rope.freq_base_swa", 1e4),
    }


def _rope_scaling(keys: _Keys, factors: npt.NDArray[np.float32] | None, head_dim: int) -> RopeScaling | None:
    if factors is not None:
        return _llama3_scaling(keys, factors, head_dim)
    kind = keys.get("rope.scaling.type", "none")
    if kind == "none":
        return None
    if kind == "linear":
        return RopeScaling("linear", keys.real("rope.scaling.factor"))
    raise ModelError(f"no rope scaling {kind!r}; known are none, linear and llama3")


def _llama3_scaling(keys: _Keys, factors: npt.NDArray[np.float32], head_dim: int) -> RopeScaling | None:
    """GGUF stores Llama 3's scaling as the divisor of each frequency: find the one that gives these divisors."""
    theta = keys.real("rope.freq_base", 1e4)
    factor = float(factors.max())
    if factor == 1.0:
        return None
    scaling = RopeScaling("llama3", factor, low_freq_factor=1.0, high_freq_factor=4.0, original_max_context=8192)
    expected = llama3_divisors(scaling, theta, head_dim)
    if factors.shape != expected.shape or not np.allclose(factors, expected, rtol=1e-4):
        raise ModelError("rope_freqs.weight is not Llama 3's rope scaling (low 1, high 4, original context 8192)")
    return scaling


def llama3_divisors(scaling: RopeScaling, theta: float, head_dim: int) -> npt.NDArray[np.float32]:
    """[head_dim/2]: what each rotary frequency is divided by (Llama 3.1's rule: long waves by `factor`, short by 1)."""
    return frequencies(head_dim, theta, None) / frequencies(head_dim, theta, scaling)
