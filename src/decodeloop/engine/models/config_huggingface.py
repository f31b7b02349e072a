"""A Hugging Face config.json as a ModelConfig."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from decodeloop.engine.models import ModelConfig, ModelError, RopeScaling

FAMILIES = {"llama": "llama", "qwen3": "qwen3", "gemma3": "gemma3", "gemma3_text": "gemma3"}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
# What a config.json may leave out, because the library's classes have it as their default.
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "llama": {"rope_theta": 1e4, "rms_norm_eps": 1e-6, "max_position_embeddings": 2048, "hidden_act": "silu"},
    "qwen3": {
        "head_dim": 128,
        "rope_theta": 1e4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "hidden_act": "silu",
    },
    "gemma3": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "rope_theta": 1e6,
        "rope_local_base_freq": 1e4,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "tie_word_embeddings": True,
    },
}


def config_from_huggingface(raw: Mapping[str, Any]) -> ModelConfig:
    """Read config.json's object `raw`; of a multimodal one, the text part.

    Raises:
        ModelError: an unknown architecture, a missing key, or a variant that our runners do not know.
    """
    family = FAMILIES.get(raw.get("model_type", ""))
    if family is None:
        raise ModelError(f"no architecture {raw.get('model_type')!r}; choose a model of {', '.join(FAMILIES)}")
    if "quantization_config" in raw:
        raise ModelError("its weights are quantised in a way only other engines read; use the original or a GGUF")
    fields = _Fields({**_DEFAULTS[family], **raw, **(raw.get("text_config") or {})})
    for variant in ("mlp_bias", "use_bidirectional_attention"):
        if fields.get(variant, False):
            raise ModelError(f"config.json says {variant}, which is not known here")
    heads, hidden = fields.count("num_attention_heads"), fields.count("hidden_size")
    head_dim = fields.get("head_dim", None) or hidden // heads
    if not head_dim:
        raise ModelError(f"{heads} heads in a width of {hidden} cannot be right")
    layers = fields.count("num_hidden_layers")
    activation = fields.need("hidden_activation" if family == "gemma3" else "hidden_act")
    if activation not in _ACTIVATIONS:
        raise ModelError(f"no activation {activation!r}; known are {', '.join(_ACTIVATIONS)}")
    gemma = family == "gemma3"
    window = _window_layers(fields, layers, gemma=gemma)
    rope, rope_window = _ropes(fields, gemma=gemma)
    return ModelConfig(
        family=family,
        vocab_size=fields.need("vocab_size"),
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=fields.get("num_key_value_heads", None) or heads,
        head_dim=head_dim,
        ffn_size=fields.need("intermediate_size"),
        max_context=fields.need("max_position_embeddings"),
        norm_eps=fields.need("rms_norm_eps"),
        rope_theta=float(rope["rope_theta"]),
        activation=_ACTIVATIONS[activation],
        tied_embeddings=bool(fields.get("tie_word_embeddings", False)),
        qk_norm=family in ("qwen3", "gemma3"),
        post_norms=gemma,
        embedding_scale=hidden**0.5 if gemma else 1.0,
        query_scale=float(fields.get("query_pre_attn_scalar", head_dim) if gemma else head_dim) ** -0.5,
        sliding_window=fields.need("sliding_window") if any(window) else None,
        window_layers=window if any(window) else (),
        rope_theta_window=float(rope_window["rope_theta"]) if rope_window and any(window) else None,
        rope_scaling=_rope_scaling(rope),
        attention_softcap=fields.get("attn_logit_softcapping", None),
        final_softcap=fields.get("final_logit_softcapping", None),
        attention_bias=bool(fields.get("attention_bias", False)),
    )


class _Fields:
    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields

    def get(self, key: str, default: Any) -> Any:
        return self._fields.get(key, default)

    def need(self, key: str) -> Any:
        if self._fields.get(key) is None:
            raise ModelError(f"config.json lacks {key}")
        return self._fields[key]

    def count(self, key: str) -> int:
        value = self.need(key)
        if not isinstance(value, int) or value < 1:
            raise ModelError(f"config.json says {key} is {str(value)[:40]!r}, not a count of 1 or more")
        return value


def _window_layers(fields: _Fields, layers: int, *, gemma: bool) -> tuple[bool, ...]:
    if not gemma and not fields.get("use_sliding_window", False):
        return (False,) * layers
    kinds = fields.get("layer_types", None)
    if kinds is not None:
        if len(kinds) != layers:
            raise ModelError(f"config.json names {len(kinds)} layer_types for {layers} layers")
        return tuple(kind == "sliding_attention" for kind in kinds)
    if gemma:
        period = fields.need("sliding_window_pattern")
        return tuple((index + 1) % period != 0 for index in range(layers))
    return tuple(index >= fields.get("max_window_layers", 0) for index in range(layers))


def _ropes(fields: _Fields, *, gemma: bool) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """The rotary parameters of full-attention layers, and those of window layers where they are others."""
    parameters = fields.get("rope_parameters", None) or {}
    if "full_attention" in parameters:
        window = parameters.get("sliding_attention")
        if window and _rope_scaling(window):
            raise ModelError(f"rope scaling {window.get('rope_type')!r} of window layers is not known here")
        return parameters["full_attention"], window
    full = {"rope_theta": fields.get("rope_theta", None), **(fields.get("rope_scaling", None) or {}), **parameters}
    return full, {"rope_theta": fields.need("rope_local_base_freq")} if gemma else None


def _rope_scaling(rope: Mapping[str, Any]) -> RopeScaling | None:
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind == "default":
        return None
    try:
        if kind == "linear":
            return RopeScaling("linear", float(rope["factor"]))
        if kind == "llama3":
            return RopeScaling(
                "llama3",
                float(rope["factor"]),
                float(rope["low_freq_factor"]),
                float(rope["high_freq_factor"]),
                int(rope["original_max_position_embeddings"]),
            )
    except KeyError as error:
        raise ModelError(f"config.json lacks {error.args[0]} of its {kind} rope scaling") from error
    raise ModelError(f"no rope scaling {kind!r}; known are default, linear and llama3")
