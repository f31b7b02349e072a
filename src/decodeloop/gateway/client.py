"""A request's sender, as far as a server of ours shows it to an application beside ASGI's messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

__all__ = ["CLIENT", "Client"]

CLIENT = "decodeloop.client"  # where a scope carries a Client, if its server has one


class Client(Protocol):
    """What a server of ours offers beside ASGI's messages, for less."""

    gone: bool

    def body_now(self) -> bytes | None:
        """The whole body, once, if it is here already and none of it was received."""
        ...

    def alarm(self, gone: Callable[[], None] | None) -> None:
        """Have `gone` called when the client leaves before the response's end."""
        ...

    def respond_now(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """The whole response; False: it isn't taken now, and nothing was written."""
        ...

    def write_now(self, data: bytes) -> bool:
        """A part of the body that isn't its end; False: it isn't taken now, and nothing was written."""
        ...
