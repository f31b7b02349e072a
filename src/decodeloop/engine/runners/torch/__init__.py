"""The torch runner: the reference that others are compared with, the fallback, and the one for CUDA."""

from decodeloop.engine.runners.torch.runner import TorchRunner

__all__ = ["TorchRunner"]
