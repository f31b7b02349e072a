"""Drafters as governed components: who answers for one, under what licence, and whether its data may be used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["DrafterComponent", "unfit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterComponent:
    """trained: whether it learned from data at all (lookup drafters did not); consent: whether those whose data it
    learned from agreed to that; sha256: of its weights, "" for drafters without any."""

    name: str
    owner: str = ""
    licence: str = ""
    trained: bool = True
    consent: bool = False
    sha256: str = ""


def unfit(name: str, components: Mapping[str, DrafterComponent]) -> str | None:
    """Why the drafter may not be used where drafters are governed; None: it may."""
    component = components.get(name)
    if component is None:
        return f"drafter {name!r} is not a registered component"
    if not component.owner:
        return f"nobody owns drafter {name!r}"
    if component.trained and not component.licence:
        return f"drafter {name!r} has no licence"
    if component.trained and not component.consent:
        return f"there is no consent to the data that drafter {name!r} learned from"
    return None
