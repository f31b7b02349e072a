"""A checkpoint's tensors as the torch runner holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from decodeloop.engine.models import Checkpoint
from decodeloop.engine.runners.torch.formats import WeightFormat
from decodeloop.engine.runners.torch.linear import Linear, PlainLinear


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """qkv and gate_up are stacked along `out`. qk_norm: [heads + kv_heads, head_dim], each head's scale."""

    attn_norm: Tensor
    qkv: Linear
    o: Linear
    mlp_norm: Tensor
    gate_up: Linear
    down: Linear
    qk_norm: Tensor | None
    post_attn_norm: Tensor | None
    post_mlp_norm: Tensor | None


@dataclass(frozen=True, slots=True)
class ModelWeights:
    """embed is also the head of a model with tied embeddings, unless the head is int4."""

    embed: PlainLinear
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor
    head: Linear

    @property
    def nbytes(self) -> int:
        return sum({id(part): part.nbytes for part in self._parts()}.values())

    def _parts(self) -> Iterator[Linear | Tensor]:
        yield from (self.embed, self.final_norm, self.head)
        for layer in self.layers:
            held = (getattr(layer, field.name) for field in fields(layer))
            yield from (part for part in held if part is not None)


def load_weights(checkpoint: Checkpoint, form: WeightFormat, layers: int) -> ModelWeights:
    """The first `layers` layers, final norm and head. Raises KeyError for a tensor that the checkpoint lacks."""
    loader = _Loader(checkpoint, form)
    embed = form.table(loader.read("embed"))
    if form.int4:
        head: Linear = loader.matrix("head")
    else:
        head = embed if checkpoint.config.tied_embeddings else form.table(loader.read("head"))
    return ModelWeights(
        embed=embed,
        layers=tuple(loader.layer(index) for index in range(layers)),
        final_norm=loader.vector("final_norm"),
        head=head,
    )


class _Loader:
    def __init__(self, checkpoint: Checkpoint, form: WeightFormat) -> None:
        self._checkpoint, self._form = checkpoint, form
        self._names = set(checkpoint.names())

    def layer(self, index: int) -> LayerWeights:
        at = f"layers.{index}."
        config = self._checkpoint.config
        return LayerWeights(
            attn_norm=self.vector(at + "attn_norm"),
            qkv=self.matrix(at + "q", at + "k", at + "v"),
            o=self.matrix(at + "o"),
            mlp_norm=self.vector(at + "mlp_norm"),
            gate_up=self.matrix(at + "gate", at + "up"),
            down=self.matrix(at + "down"),
            qk_norm=self._qk_norm(at) if config.qk_norm else None,
            post_attn_norm=self.vector(at + "post_attn_norm") if config.post_norms else None,
            post_mlp_norm=self.vector(at + "post_mlp_norm") if config.post_norms else None,
        )

    def read(self, name: str) -> Tensor:
        values = self._checkpoint.weight(name).float32()
        return torch.from_numpy(values if values.flags.writeable else values.copy())

    def vector(self, name: str) -> Tensor:
        return self._form.vector(self.read(name))

    def matrix(self, *names: str) -> Linear:
        """The named matrices, one above the other, with their biases where they have some."""
        parts = [self.read(name) for name in names]
        biases = [self._bias(name) for name in names]
        stacked = parts[0] if len(parts) == 1 else torch.cat(parts)
        if all(bias is None for bias in biases):
            return self._form.matrix(stacked)
        filled = [
            torch.zeros(part.shape[0]) if bias is None else bias for bias, part in zip(biases, parts, strict=True)
        ]
        return self._form.matrix(stacked, torch.cat(filled))

    def _bias(self, name: str) -> Tensor | None:
        return self.read(f"{name}_bias") if f"{name}_bias" in self._names else None

    def _qk_norm(self, at: str) -> Tensor:
        config = self._checkpoint.config
        q = self.vector(at + "q_norm").expand(config.heads, -1)
        k = self.vector(at + "k_norm").expand(config.kv_heads, -1)
        return torch.cat([q, k])
