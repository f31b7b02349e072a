"""POST /v1/explain: what would become of a request, and why, without running it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import orjson

from decodeloop.gateway.admission import Admission, Terms
from decodeloop.gateway.aliases import Aliases
from decodeloop.gateway.claims import claim_of_envelope
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Asked, Fleet
from decodeloop.gateway.identity import Authenticator
from decodeloop.gateway.settings import Limits
from decodeloop.gateway.wire.envelope import read_envelope
from decodeloop.gateway.wire.parse import Arrival, Classify
from decodeloop.types.routing import RouteRequest

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
            arrived_s=exchange.arrived_s,
            classify=self.classify,
        )
        envelope = read_envelope(raw, arrival.default_model, self.limits, arrival.classify)
        aliased = self.aliases.choice(envelope, identity)
        terms = Terms(pool=exchange.sole("x-decodeloop-pool"), aliased=aliased)
        claim = claim_of_envelope(envelope, arrival)
        ruling = self.admission.clerk.rule(claim, terms)
        model = envelope.model if aliased is None else aliased.model
        route = self.fleet.route(
            Asked(
                model=model,
                route=RouteRequest(
                    request_class=envelope.request_class,
                    speculation=ruling.speculation,
                    pool=terms.pool,
                    may_choose=ruling.choose_pool,
                ),
                fields=envelope.asked,
                prefix=envelope.prefix,
            )
        )
        standing = self.fleet.pools[route.pool].standing()
        told = {
            "model": model,
            "asked_model": envelope.model,
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
