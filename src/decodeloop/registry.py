"""Names to components. Nothing is imported until it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from typing import Generic, TypeVar

T = TypeVar("T")


class Registry(Generic[T]):
    """Built-in components, plus those that other packages publish under `decodeloop.<kind>`."""

    def __init__(self, kind: str, builtin: dict[str, str]) -> None:
        self.kind = kind
        self._builtin = builtin

    @cached_property
    def _targets(self) -> dict[str, str]:
        targets = dict(self._builtin)
        for point in entry_points(group=f"decodeloop.{self.kind}"):
            if point.name in targets:
                raise ValueError(f"{self.kind}: {point.name!r} is already {targets[point.name]}")
            targets[point.name] = point.value
        return targets

    def names(self) -> list[str]:
        return sorted(self._targets)

    def load(self, name: str) -> Callable[..., T]:
        """The class called `name`; its constructor is stated by the registry's Protocol.

        Raises:
            ValueError: no component has that name; the message lists the choices.
        """
        if name not in self._targets:
            raise ValueError(f"{self.kind}: no {name!r}; choose from {', '.join(self.names())}")
        module, _, attribute = self._targets[name].partition(":")
        component: Callable[..., T] = getattr(import_module(module), attribute)
        return component
