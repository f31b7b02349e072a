"""The one place that changes torch's process-wide state."""

from __future__ import annotations

import torch

from decodeloop.engine.hardware import read_hardware


def use_threads(count: int) -> None:
    """Give torch's kernels `count` threads; 0: one for every core this process may use."""
    torch.set_num_threads(count or read_hardware().threads)
