"""The compiled kernels. `load()` gives the module, or says why there is none."""

from __future__ import annotations

import warnings
from importlib import import_module
from types import ModuleType

from decodeloop.engine.kernels.sources import digest

MODULE = "decodeloop.engine.kernels._native"


def load() -> ModuleType:
    """Raises ImportError when this installation was made without a C++ compiler. Warns of a module that is outdated."""
    try:
        module = import_module(MODULE)
    except ImportError as error:
        raise ImportError(
            f"the compiled kernels can't be loaded ({error}); reinstall decodeloop where a C++ compiler is found"
        ) from error
    if (why := outdated(module)) is not None:
        warnings.warn(why, RuntimeWarning, stacklevel=2)
    return module


def outdated(module: ModuleType) -> str | None:
    """What is wrong with a module that was built from other sources than those beside it; None for nothing."""
    wanted = digest()
    if wanted is None or getattr(module, "sources", "") == wanted:
        return None
    return "the compiled kernels were built from other sources than those here: build them again with `make setup`"
