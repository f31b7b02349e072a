"""The torch runner: the reference that others are compared with, the fallback, and the one for CUDA."""

try:
    from decodeloop.engine.runners.torch.runner import TorchRunner
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ImportError("torch is not installed: pip install 'decodeloop[torch]'") from error

__all__ = ["TorchRunner"]
