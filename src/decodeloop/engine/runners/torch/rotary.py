"""Rotary position embedding (Su et al. 2104.09864) in rotate-half form."""

from __future__ import annotations

import torch
from torch import Tensor

from decodeloop.engine.models import ModelConfig
from decodeloop.engine.models.rope import rope_frequencies


class Rotary:
    """The angles of a model's ordinary and its window layers."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        ordinary, window = map(torch.from_numpy, rope_frequencies(config))
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
