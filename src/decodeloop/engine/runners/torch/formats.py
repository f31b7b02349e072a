"""What `RunnerOptions.dtype` means on a device: how matrices are stored, and in what the rest is computed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from decodeloop.engine.runners.torch.linear import (
    Int4Linear,
    Linear,
    PackedLinear,
    PlainLinear,
    dequantise_int4,
    has_int4_kernel,
    quantise_int4,
    uses_onednn,
)

DTYPES = ("auto", "float32", "bfloat16", "int4")
_ALIASES = {"bf16": "bfloat16", "fp32": "float32"}


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """name: for people. dtype: of embeddings, and of matrices that aren't int4. kv_dtype: of keys and values."""

    name: str
    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    int4: bool = False

    @classmethod
    def of(cls, dtype: str, device: str) -> WeightFormat:
        """Raises ValueError for a dtype or a device that there isn't."""
        dtype = _ALIASES.get(dtype, dtype)
        if dtype not in DTYPES:
            raise ValueError(f"torch: no dtype {dtype!r}; choose from {', '.join(DTYPES)}")
        place = _device(device)
        if dtype == "auto":
            dtype = "float32" if place.type == "cpu" else "bfloat16"
        if dtype == "float32":
            return cls("float32", place, torch.float32, torch.float32)
        if dtype == "bfloat16":
            return cls("bfloat16", place, torch.bfloat16, torch.bfloat16)
        kv_dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
        name = "int4 g32" if has_int4_kernel(place) else "int4 g32, held as bfloat16"
        return cls(name, place, torch.bfloat16, kv_dtype, int4=True)

    def matrix(self, weight: Tensor, bias: Tensor | None = None) -> Linear:
        """weight: [out, in] float32 on the CPU."""
        if self.int4:
            if has_int4_kernel(self.device):
                return Int4Linear(weight, bias)
            weight = dequantise_int4(*quantise_int4(weight))
        weight = weight.to(self.device, self.dtype)
        bias = None if bias is None else bias.to(self.device, self.dtype)
        return PackedLinear(weight, bias) if uses_onednn(weight) else PlainLinear(weight, bias)

    def vector(self, weight: Tensor) -> Tensor:
        """Norms stay float32: they are small, and precision is lost there first."""
        return weight.to(self.device)

    def table(self, weight: Tensor) -> PlainLinear:
        """A matrix whose rows are looked up."""
        return PlainLinear(weight.to(self.device, self.dtype))


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"torch: no device {name!r}; choose from cpu, cuda, cuda:0, ...") from error
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"torch: no device {name!r}; choose from cpu, cuda, cuda:0, ...")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch: device 'cuda' was asked for, but this torch sees no CUDA device; choose cpu")
    return device
