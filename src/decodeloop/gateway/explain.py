"""POST /v1/explain: what would become of a request, and why, without running it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import orjson
from msgspec import structs

from decodeloop.gateway.admission import Admission
from decodeloop.gateway.aliases import Aliases
from decodeloop.gateway.claims import claim_of_envelope
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.sessions import asked_by, slo_of, terms_of
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.envelope import read_envelope
from decodeloop.gateway.wire.parse import Arrival, Classify

__all__ = ["Explain"]


@dataclass(frozen=True, slots=True)
class Explain:
    """Takes the body of a chat or text completion."""

    aliases: Aliases
    authenticator: Authenticator
    admission: Admission
    fleet: Fleet
    limits: Limits
    classify: Classify

    async def __call__(self, exchange: Exchange) -> None:
        identity = exchange.vouched or self.authenticator.identify(exchange)
        raw = await exchange.read_json(self.limits)
        arrival = Arrival(
            id=f"explain-{uuid.uuid4().hex}",
            default_model=self.fleet.default_model(),
            identity=identity,
            slo=slo_of(exchange),
            arrived_s=exchange.arrived_s,
            classify=self.classify,
        )
        named = read_envelope(raw, arrival.default_model, self.limits, arrival.classify)
        aliased = self.aliases.choice(named, identity)
        envelope = named if aliased is None else structs.replace(named, model=aliased.model)
        terms = replace(terms_of(exchange, raw), aliased=aliased)
        ruling = self.admission.clerk.rule(claim_of_envelope(envelope, arrival), terms)
        route = self.fleet.route(asked_by(envelope, ruling, terms, arrival.slo))
        standing = self.fleet.pools[route.pool].standing()
        told = {
            "model": envelope.model,
            "asked_model": named.model,
            "model_reason": "asked for by name" if aliased is None else aliased.why,
            "class": envelope.request_class,
            "class_declared": envelope.class_declared,
            "pool": route.pool,
            "route": route.reason.value,
            "scores": dict(route.scores),
            "losslessness": standing.losslessness.value,
            "speculation": ruling.speculation.mode.value,
            "grant": ruling.grant,
            "denied": [denial.why for denial in ruling.denials],
        }
        await exchange.respond(200, orjson.dumps(told))
