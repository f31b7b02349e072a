"""Which upstream serves a model."""

from __future__ import annotations

from collections.abc import Mapping

from decodeloop.gateway.upstreams import ModelCard, Upstream
from decodeloop.types import RequestRefused

__all__ = ["Fleet"]


class Fleet:
    """Upstreams by name."""

    def __init__(self, upstreams: Mapping[str, Upstream]) -> None:
        if not upstreams:
            raise ValueError("a gateway needs at least one upstream")
        self.upstreams = dict(upstreams)

    async def start(self) -> None:
        """Start all; when one fails, those already started are closed again."""
        started: list[Upstream] = []
        try:
            for upstream in self.upstreams.values():
                await upstream.start()
                started.append(upstream)
        except BaseException:
            for upstream in started:
                await upstream.close()
            raise

    async def close(self) -> None:
        for upstream in self.upstreams.values():
            await upstream.close()

    def ready(self) -> bool:
        return all(upstream.ready() for upstream in self.upstreams.values())

    def cards(self) -> list[ModelCard]:
        """One card a model id."""
        cards = {card.id: card for upstream in self.upstreams.values() for card in upstream.models()}
        return list(cards.values())

    def default_model(self) -> str:
        """What a request without `model` gets."""
        cards = self.cards()
        return cards[0].id if cards else ""

    def card(self, model: str) -> ModelCard:
        for card in self.cards():
            if card.id == model:
                return card
        choices = ", ".join(card.id for card in self.cards())
        raise RequestRefused(
            f"no model {model[:100]!r} here; choose from: {choices}", status=404, param="model", code="model_not_found"
        )

    def pick(self, model: str) -> tuple[str, Upstream]:
        """The name and the upstream to ask.

        Raises:
            RequestRefused: 404 for an unknown model, 503 when none that serves it is ready.
        """
        self.card(model)
        for name, upstream in self.upstreams.items():
            if upstream.ready() and any(card.id == model for card in upstream.models()):
                return name, upstream
        raise RequestRefused("the model is not ready yet", status=503, code="not_ready")
