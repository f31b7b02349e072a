"""A drafter's own options, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


def read_options(kind: type[T], drafter: str, options: Mapping[str, Any]) -> T:
    """`options` as the frozen dataclass `kind`, whose own checks run too.

    Raises:
        ValueError: an unknown option, a wrong type, or a value that the dataclass refuses.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in options:
        if name not in known:
            raise ValueError(f"drafter {drafter}: no option {name!r}; choose from {', '.join(known)}")
    try:
        return msgspec.convert(dict(options), kind)
    except msgspec.ValidationError as error:
        raise ValueError(f"drafter {drafter}: {error}") from None
