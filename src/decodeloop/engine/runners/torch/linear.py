"""A weight matrix and how it is multiplied: one class a storage format."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

INT4_GROUP = 32
_ONEDNN_ROWS = 16  # oneDNN lays a weight out for about so many rows; measured best, or level, from 1 to 256


class Linear(Protocol):
    """y = x W^T + b. x: [T, in] of any float dtype; y: [T, out] in the format's own."""

    nbytes: int

    def __call__(self, x: Tensor) -> Tensor: ...


class PlainLinear:
    """[out, in] as it is, whose rows can be looked up: embeddings and heads, and every matrix on CUDA."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.weight, self._bias = weight, bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)
        self._onednn = uses_onednn(weight)

    def __call__(self, x: Tensor) -> Tensor:
        x = x.to(self.weight.dtype)
        if self._onednn:  # MKL, which F.linear calls, takes twice the time below 16 rows
            return _onednn(x, self.weight, self._bias)
        return F.linear(x, self.weight, self._bias)

    def rows(self, tokens: Tensor) -> PlainLinear:
        return PlainLinear(self.weight[tokens])


class PackedLinear:
    """A weight in oneDNN's own blocked order, opaque to everything else. CPU only."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._dtype = weight.dtype
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ONEDNN_ROWS)
        self._bias = bias
        self.nbytes = weight.nbytes + (0 if bias is None else bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        return _onednn(x.to(self._dtype), self._packed, self._bias)


class Int4Linear:
    """Four bits a weight in groups of 32 along `in`: w = (code - 8) * scale + zero. In bfloat16, on the CPU only."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._out = weight.shape[0]
        self._bias = None if bias is None else bias.to(torch.bfloat16)
        spare = -self._out % 16  # the kernel wants whole groups of 16 outputs
        codes, scale, zero = quantise_int4(F.pad(weight, (0, 0, 0, spare)))
        self._packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes, 1)
        self._scale_zero = torch.stack([scale, zero], dim=-1).transpose(0, 1).contiguous()  # [in / 32, out, 2]
        self.nbytes = self._packed.nbytes + self._scale_zero.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor) -> Tensor:
        y: Tensor = torch.ops.aten._weight_int4pack_mm_for_cpu(
            x.to(torch.bfloat16), self._packed, INT4_GROUP, self._scale_zero
        )
        y = y[:, : self._out]
        return y if self._bias is None else y + self._bias


def quantise_int4(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[out, in] -> codes [out, in] int32 in 0..15, scale and zero [out, in / 32] bfloat16, from each group's range.

    Raises ValueError when `in` is no multiple of 32.
    """
    out, width = weight.shape
    if width % INT4_GROUP:
        raise ValueError(f"int4 needs matrices whose width is a multiple of {INT4_GROUP}, not {width}")
    groups = weight.float().view(out, width // INT4_GROUP, INT4_GROUP)
    low, high = torch.aminmax(groups, dim=-1)
    scale = ((high - low) / 15).clamp(min=1e-12).to(torch.bfloat16)
    zero = (low + 8 * scale).to(torch.bfloat16)
    codes = ((groups - zero.float()[..., None]) / scale.float()[..., None]).round_().add_(8).clamp_(0, 15)
    return codes.view(out, width).to(torch.int32), scale, zero


def dequantise_int4(codes: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """[out, in] float32, what `quantise_int4` kept."""
    groups = codes.view(*scale.shape, INT4_GROUP).float()
    return ((groups - 8) * scale.float()[..., None] + zero.float()[..., None]).view(codes.shape)


def uses_onednn(weight: Tensor) -> bool:
    """Whether oneDNN multiplies this weight on this CPU."""
    if weight.device.type != "cpu" or not torch._C._has_mkldnn:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def has_int4_kernel(device: torch.device) -> bool:
    return device.type == "cpu" and hasattr(torch.ops.aten, "_weight_int4pack_mm_for_cpu")


def _onednn(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return y
