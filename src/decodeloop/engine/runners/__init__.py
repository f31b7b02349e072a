"""What executes a target. Built as `cls(checkpoint, options)`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from decodeloop.registry import Registry
from decodeloop.speculation.forward import Batch, Forward, Runner, RunnerInfo

__all__ = ["Batch", "Forward", "Runner", "RunnerInfo", "RunnerOptions", "runners"]


@dataclass(frozen=True, slots=True)
class RunnerOptions:
    """dtype: the weights' format ("auto": the runner's default). layers: run only the first so many (None: all).

    fixed_shape: torch only; every forward in one shape, so that logits are batch-invariant (slow, for tests).
    weights_of: an opened runner of the same kind, checkpoint, dtype and device: share its weights, not its KV.
    """

    dtype: str = "auto"
    threads: int = 0  # 0: all the cores this process may use
    block_tokens: int = 16
    layers: int | None = None
    fixed_shape: bool = False
    device: str = "cpu"
    weights_of: Runner | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def layers_of(self, all_layers: int, *, runner: str) -> int:
        """How many of a model's layers are to run. Raises ValueError in the runner's name for more than there are."""
        layers = all_layers if self.layers is None else self.layers
        if not 1 <= layers <= all_layers:
            raise ValueError(f"{runner}: layers must be within 1..{all_layers}, not {layers}")
        return layers


runners = Registry[Runner](
    "runners",
    {
        "native": "decodeloop.engine.runners.native:NativeRunner",
        "torch": "decodeloop.engine.runners.torch:TorchRunner",
        "toy": "decodeloop.engine.runners.toy:ToyRunner",
    },
)
