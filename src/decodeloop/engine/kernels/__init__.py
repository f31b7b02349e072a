"""The compiled kernels. `load()` gives the module, or says why there is none."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

MODULE = "decodeloop.engine.kernels._native"


def load() -> ModuleType:
    """Raises ImportError when this installation was made without a C++ compiler."""
    try:
        return import_module(MODULE)
    except ImportError as error:
        raise ImportError(
            f"the compiled kernels can't be loaded ({error}); reinstall decodeloop where a C++ compiler is found"
        ) from error
