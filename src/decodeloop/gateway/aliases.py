"""Names that clients ask for, and which of several models answers: a smaller one where the request's class allows it.

Nothing is chosen silently: the answer's `model` is what answered, headers say which and why, ledger and audit too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from decodeloop.gateway.admission import Admission, Aliased
from decodeloop.gateway.exchange import Exchange
from decodeloop.gateway.fleet import Fleet
from decodeloop.gateway.settings import AliasSettings, Limits
from decodeloop.gateway.wire.body import dumped
from decodeloop.gateway.wire.envelope import Envelope, read_envelope
from decodeloop.gateway.wire.parse import Arrival
from decodeloop.types import Identity

__all__ = ["Aliases"]


@dataclass(frozen=True, slots=True)
class Aliases:
    """The operator's, by the name that clients ask for."""

    settings: Mapping[str, AliasSettings]
    fleet: Fleet
    admission: Admission
    limits: Limits

    def resolved(self, exchange: Exchange, raw: bytes, arrival: Arrival) -> bytes:
        """The body with the model that is to answer. Raises RequestRefused for a body that makes no sense."""
        if not self.settings:
            return raw
        envelope = read_envelope(raw, arrival.default_model, self.limits, arrival.classify)
        aliased = self.choice(envelope, arrival.identity)
        if aliased is None:
            return raw
        exchange.aliased = aliased
        if exchange.trail is not None:
            exchange.trail.asked_model = aliased.asked
        exchange.told += [
            (b"x-decodeloop-model", aliased.model.encode()),
            (b"x-decodeloop-model-reason", aliased.why.encode("ascii", "replace")),
        ]
        return dumped({**envelope.body, "model": aliased.model})

    def choice(self, envelope: Envelope, identity: Identity) -> Aliased | None:
        """None: no alias is asked for."""
        alias = self.settings.get(envelope.model)
        if alias is None:
            return None
        asked, request_class, against = envelope.model, envelope.request_class, []
        for smaller in alias.smaller:
            if request_class not in smaller.classes:
                against.append(f"{smaller.model} is not for class {request_class}")
            elif not (envelope.class_declared or smaller.guessed):
                against.append(f"{smaller.model} is for declared classes, and {request_class} was guessed")
            elif (denied := self.admission.clerk.denied_smaller(identity, asked, smaller.model)) is not None:
                against.append(denied)
            elif not self.fleet.can_serve(smaller.model):
                against.append(f"{smaller.model} is not ready")
            else:
                return Aliased(asked, smaller.model, f"class {request_class} allows it", smaller=True)
        return Aliased(asked, alias.model, "; ".join(against) or "it is what the name stands for")
