"""Rotary position embedding (Su et al. 2104.09864) in rotate-half form, with Llama-3's and linear frequency scaling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from decodeloop.engine.models import ModelConfig, RopeScaling


def frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> Tensor:
    """[head_dim / 2] radians a position, float32 as the models were trained with."""
    base = 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
    if scaling is None:
        return base
    if scaling.kind == "linear":
        return base / scaling.factor
    if scaling.kind == "llama3":
        return _llama3(base, scaling)
    raise ValueError(f"rope scaling: no kind {scaling.kind!r}; choose from linear, llama3")


def _llama3(base: Tensor, scaling: RopeScaling) -> Tensor:
    """Long waves are stretched by the factor, short ones kept, those between blended."""
    turns = scaling.original_max_context * base / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return kept * base + (1 - kept) * base / scaling.factor


class Rotary:
    """The angles of a model's ordinary and its window layers."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        ordinary = frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        window = ordinary
        if config.rope_theta_window is not None:
            window = frequencies(config.head_dim, config.rope_theta_window, None)
        self._ordinary, self._window = ordinary.to(device), window.to(device)
        self.same = torch.equal(ordinary, window)

    def ordinary(self, positions: Tensor) -> Tensor:
        """positions: [T] float32 -> [T, 2, 1, head_dim], factors of a head and of its swapped halves."""
        return _factors(positions, self._ordinary)

    def window(self, positions: Tensor) -> Tensor:
        return _factors(positions, self._window)


def _factors(positions: Tensor, frequency: Tensor) -> Tensor:
    angles = positions[:, None] * frequency
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)[:, :, None]


def rotate(heads: Tensor, factors: Tensor) -> Tensor:
    """heads: [T, n, head_dim]."""
    swapped = heads.roll(heads.shape[-1] // 2, -1)
    return torch.addcmul(heads * factors[:, 0], swapped, factors[:, 1])
