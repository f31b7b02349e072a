"""What is known by class has its bound: tenants choose their names."""

from __future__ import annotations

from typing import TypeVar

MAX_CLASSES = 1024

Key = TypeVar("Key")
Known = TypeVar("Known")


def make_room(known: dict[Key, Known], key: Key) -> None:
    """Before `key` is set: a new one in a full dictionary takes the place of the oldest."""
    if key not in known and len(known) >= MAX_CLASSES:
        del known[next(iter(known))]
