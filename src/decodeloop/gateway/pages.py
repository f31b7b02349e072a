"""The routes that read: models, health, metrics, the policy's view."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.errors import shutting_down
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.metrics import CONTENT_TYPE, Exposition
from decodeloop.gateway.pools import Member, PoolState
from decodeloop.gateway.settings import AliasSettings
from decodeloop.gateway.upstreams import ModelCard
from decodeloop.types import RequestRefused

__all__ = ["Pages"]

WELCOME = b"""decodeloop: an OpenAI-compatible server with lossless speculative decoding

POST /v1/chat/completions   POST /v1/completions
POST /v1/explain            GET  /v1/pools
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
    aliases: Mapping[str, AliasSettings]

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
        cards = {card.id: card for card in self.fleet.cards()}
        named = [
            _alias(name, alias, cards[alias.model]) for name, alias in self.aliases.items() if alias.model in cards
        ]
        shown = [_model(card) for card in cards.values() if card.id not in self.aliases]
        await _json(exchange, {"object": "list", "data": [*named, *shown]})

    async def pools(self, exchange: Exchange) -> None:
        self._check(exchange)
        await _json(exchange, {"object": "list", "data": [_pool(pool) for pool in self.fleet.pools.values()]})

    async def model(self, exchange: Exchange) -> None:
        self._check(exchange)
        name = exchange.path_param("model")
        alias = self.aliases.get(name)
        card = self.fleet.card(name if alias is None else alias.model)
        await _json(exchange, _model(card) if alias is None else _alias(name, alias, card))

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


def _alias(name: str, alias: AliasSettings, card: ModelCard) -> dict[str, Any]:
    smaller = [{"model": each.model, "classes": each.classes, "guessed": each.guessed} for each in alias.smaller]
    return {**_model(card), "id": name, "decodeloop": {"model": alias.model, "smaller": smaller}}


def _pool(pool: PoolState) -> dict[str, Any]:
    standing, settings = pool.standing(), pool.settings
    return {
        "name": pool.name,
        "regime": settings.regime,
        "regime_hash": pool.regime,
        "methods": standing.methods,
        "losslessness": standing.losslessness,
        "why": standing.why,
        "certificate": standing.certificate or None,
        "batch_ceiling": settings.batch_ceiling,
        "refuses": sorted(pool.refuses),
        "upstreams": [_member(member) for member in pool.members],
    }


def _member(member: Member) -> dict[str, Any]:
    told = member.told()
    return {
        "name": member.name,
        "ready": member.upstream.ready(),
        "models": [card.id for card in member.upstream.models()],
        "in_flight": member.in_flight,
        "version": told.version or None,
        "speculates": told.speculates,
        "methods": told.methods,
        "lossless": told.lossless,
    }


async def _json(exchange: Exchange, value: Any) -> None:
    await exchange.respond(200, orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS))
