"""Frequencies of rotary position embedding (Su et al. 2104.09864), with Llama-3's and linear scaling."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from decodeloop.engine.models import ModelConfig, RopeScaling

Floats = npt.NDArray[np.float32]


def rope_frequencies(config: ModelConfig) -> tuple[Floats, Floats]:
    """Of a model's ordinary layers and of its window layers, the same where those have no theta of their own."""
    ordinary = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
    if config.rope_theta_window is None:
        return ordinary, ordinary
    return ordinary, frequencies(config.head_dim, config.rope_theta_window, None)


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Floats:
    """[head_dim / 2] radians a position, in the single precision that the models were trained with."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    base = (np.float32(1.0) / np.float32(theta) ** exponents).astype(np.float32)
    if scaling is None:
        return base
    if scaling.kind == "linear":
        return base / np.float32(scaling.factor)
    if scaling.kind == "llama3":
        return _llama3(base, scaling)
    raise ValueError(f"rope scaling: no kind {scaling.kind!r}; choose from linear, llama3")


def _llama3(base: Floats, scaling: RopeScaling) -> Floats:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    turns = scaling.original_max_context * base / (2 * math.pi)
    kept = np.clip((turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor), 0, 1)
    return np.asarray(kept * base + (1 - kept) * base / scaling.factor, dtype=np.float32)
