"""Names that no two requests share. They are no secrets."""

from __future__ import annotations

from random import getrandbits

__all__ = ["random_id"]


def random_id() -> str:
    """128 bits. Not the system's: at every call of it another thread, as the books', may take the interpreter."""
    return f"{getrandbits(128):032x}"
