"""The one place that changes torch's process-wide state."""

from __future__ import annotations

import os

import torch


def use_threads(count: int) -> None:
    """Give torch's kernels `count` threads; 0: one for every core this process may use."""
    torch.set_num_threads(count or len(os.sched_getaffinity(0)))
