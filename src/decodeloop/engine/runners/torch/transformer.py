"""The per-token part of a Llama, Qwen3 or Gemma3 forward: everything but attention. Float32 between the matrices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from decodeloop.engine.models import ModelConfig
from decodeloop.engine.runners.torch.linear import Linear
from decodeloop.engine.runners.torch.rotary import rotate
from decodeloop.engine.runners.torch.weights import LayerWeights, ModelWeights


class Transformer:
    """Functions of rows: [T, ...] in, [T, ...] out, no row touching another."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config, self.weights = config, weights

    def embed(self, tokens: Tensor) -> Tensor:
        """[T] -> [T, H]."""
        return self.weights.embed.weight[tokens].float() * self.config.embedding_scale

    def project(self, layer: LayerWeights, x: Tensor, factors: Tensor) -> Tensor:
        """[T, H] -> [T, heads + 2 kv_heads, head_dim] queries, keys and values, the first two rotated."""
        config = self.config
        turned = config.heads + config.kv_heads
        qkv = layer.qkv(self._norm(x, layer.attn_norm)).float().view(len(x), -1, config.head_dim)
        qk = qkv[:, :turned]
        if layer.qk_norm is not None:
            qk = F.rms_norm(qk, (config.head_dim,), eps=config.norm_eps) * layer.qk_norm
        qkv[:, :turned] = rotate(qk, factors)
        return qkv

    def finish(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
        """The layer's output from its input and what attention found. attended: [T, heads * head_dim]."""
        x = x + self._post(layer.o(attended), layer.post_attn_norm)
        gate, up = layer.gate_up(self._norm(x, layer.mlp_norm)).chunk(2, dim=-1)
        gate = F.silu(gate) if self.config.activation == "silu" else F.gelu(gate, approximate="tanh")
        return x + self._post(layer.down(gate * up), layer.post_mlp_norm)

    def logits(self, head: Linear, x: Tensor) -> Tensor:
        """The last layer's output [R, H] -> [R, out] float32."""
        logits = head(self._norm(x, self.weights.final_norm)).float()
        cap = self.config.final_softcap
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, (x.shape[-1],), weight, self.config.norm_eps)

    def _post(self, y: Tensor, weight: Tensor | None) -> Tensor:
        return y if weight is None else self._norm(y.float(), weight)
