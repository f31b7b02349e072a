"""How those who fetch a model tell those who wait for it."""

from __future__ import annotations

from typing import Protocol


class FetchObserver(Protocol):
    def progress(self, what: str, done_bytes: int, total_bytes: int) -> None:
        """`what` has come so far; called often, from the thread that fetches. total_bytes 0: not known."""
        ...

    def notice(self, text: str) -> None:
        """What the model's terms want its user to read; called each time the model is resolved."""
        ...


class Silent:
    """Watches nothing."""

    def progress(self, what: str, done_bytes: int, total_bytes: int) -> None:
        pass

    def notice(self, text: str) -> None:
        pass
