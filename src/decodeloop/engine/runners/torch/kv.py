"""The paged pool of keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
import torch
from torch import Tensor

from decodeloop.engine.models import ModelConfig


@dataclass(frozen=True, slots=True)
class KvShape:
    layers: int
    kv_heads: int
    head_dim: int
    block_tokens: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(
        cls, config: ModelConfig, *, layers: int, block_tokens: int, dtype: torch.dtype, device: torch.device
    ) -> KvShape:
        return cls(layers, config.kv_heads, config.head_dim, block_tokens, dtype, device)

    @property
    def block_bytes(self) -> int:
        return self.layers * self.block_tokens * 2 * self.kv_heads * self.head_dim * self.dtype.itemsize

    def allocate(self, blocks: int) -> tuple[Tensor, ...]:
        """A layer's [blocks * block_tokens, 2 kv_heads, head_dim] each, keys then values.

        Raises MemoryError with the numbers when the memory that is free now can't hold them.
        """
        needed, free = blocks * self.block_bytes, self._free_bytes()
        if needed > free:
            raise MemoryError(
                f"{blocks} KV blocks of {self.block_bytes} bytes need {needed} bytes; {free} are free on {self.device}"
            )
        shape = (blocks * self.block_tokens, 2 * self.kv_heads, self.head_dim)
        return tuple(torch.zeros(shape, dtype=self.dtype, device=self.device) for _ in range(self.layers))

    def _free_bytes(self) -> int:
        if self.device.type == "cuda":
            return torch.cuda.mem_get_info(self.device)[0]
        available: int = psutil.virtual_memory().available
        return available
