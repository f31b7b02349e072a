"""The routes that read: models, health, metrics, the policy's view."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.errors import shutting_down
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.metrics import CONTENT_TYPE, Exposition
from decodeloop.gateway.upstreams import ModelCard
from decodeloop.types import RequestRefused

__all__ = ["Pages"]

WELCOME = b"""decodeloop: an OpenAI-compatible server with lossless speculative decoding

POST /v1/chat/completions   POST /v1/completions
GET  /v1/models             GET  /v1/policy
GET  /health   /ready   /metrics

Point any OpenAI client at this address with the path /v1. The body field `decodeloop` controls speculation for a
request, and the answer's key of that name tells what it did; the documentation has the details.
"""


@dataclass(frozen=True, slots=True)
class Pages:
    authenticator: Authenticator
    admission: Admission
    fleet: Fleet
    exposition: Exposition

    async def welcome(self, exchange: Exchange) -> None:
        await exchange.respond(200, WELCOME, b"text/plain; charset=utf-8")

    async def health(self, exchange: Exchange) -> None:
        """The process lives and its event loop turns."""
        await _json(exchange, {"status": "ok"})

    async def ready(self, exchange: Exchange) -> None:
        """Requests would be served now."""
        if self.admission.draining:
            raise shutting_down()
        if not self.fleet.ready():
            raise RequestRefused("the server is not ready yet", status=503, code="not_ready")
        await _json(exchange, {"status": "ready"})

    async def metrics(self, exchange: Exchange) -> None:
        await exchange.respond(200, self.exposition.text(), CONTENT_TYPE)

    async def models(self, exchange: Exchange) -> None:
        self._check(exchange)
        await _json(exchange, {"object": "list", "data": [_model(card) for card in self.fleet.cards()]})

    async def model(self, exchange: Exchange) -> None:
        self._check(exchange)
        await _json(exchange, _model(self.fleet.card(exchange.path_param("model"))))

    async def policy(self, exchange: Exchange) -> None:
        self._check(exchange)
        views = [
            {
                "upstream": name,
                "models": [card.id for card in upstream.models()],
                "load": upstream.load(),
                "policy": upstream.describe(),
            }
            for name, upstream in self.fleet.upstreams.items()
        ]
        await _json(exchange, {"object": "list", "data": views})

    def _check(self, exchange: Exchange) -> None:
        self.authenticator.identify(exchange)


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.id,
        "object": "model",
        "created": card.created,
        "owned_by": card.owned_by,
        "max_model_len": card.max_context,
    }


async def _json(exchange: Exchange, value: Any) -> None:
    await exchange.respond(200, orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS))
