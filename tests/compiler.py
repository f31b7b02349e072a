"""Where there is a C++ compiler the native runner must be there, and none of its tests is skipped."""

from __future__ import annotations

import os
import shutil

import pytest


def needs_compiled() -> None:
    """Skips where nothing could have been compiled. That the kernels are missing elsewhere is a failure."""
    if shutil.which(os.environ.get("CXX", "c++")) is None:
        pytest.skip("no C++ compiler here: the installation is pure")
