"""Cedar policies as a further condition: what they don't permit isn't served, whatever is granted.

principal: Caller::"organization/user/agent/capability" with those four attributes. action: Action::"generate".
resource: Model::"name". context: pool, losslessness and price where a server is chosen; speculation, drafter,
draft_len, tier, and smaller, the model that would answer for an alias.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from decodeloop.governance.capability import Ask, Denial, Place
from decodeloop.governance.scope import LEVELS
from decodeloop.types import Identity

__all__ = ["CedarPolicies"]

REMEMBERED = 10_000  # answers: they depend on nothing but the question


class CedarPolicies:
    """Implements governance's PolicyLanguage; needs the package `cedarpy`.

    Raises:
        ValueError: the text is no policy set.
        ImportError: without the package.
    """

    def __init__(self, text: str) -> None:
        try:
            import cedarpy
        except ImportError:
            raise ImportError("Cedar policies need the package cedarpy: pip install 'decodeloop[cedar]'") from None
        self._cedar = cedarpy
        try:
            self._policies = cedarpy.PolicySet.from_str(text)
        except Exception as error:
            raise ValueError(f"cedar: {error}") from None
        self._answers: OrderedDict[tuple[Identity, Ask, Place | None], Denial | None] = OrderedDict()

    def forbids(self, identity: Identity, ask: Ask, place: Place | None) -> Denial | None:
        key = (identity, ask, place)
        if key not in self._answers:
            self._answers[key] = self._asked(identity, ask, place)
            if len(self._answers) > REMEMBERED:
                self._answers.popitem(last=False)
        return self._answers[key]

    def _asked(self, identity: Identity, ask: Ask, place: Place | None) -> Denial | None:
        named = {level: getattr(identity, level) for level in LEVELS}
        caller = {"type": "Caller", "id": "/".join(named.values())}
        context: dict[str, Any] = {
            "speculation": ask.speculation.mode.value,
            "draft_len": -1 if ask.speculation.draft_len is None else ask.speculation.draft_len,
            "drafter": ask.speculation.drafter or "",
            "tier": ask.slo_tier,
            "smaller": ask.smaller,
        }
        if place is not None:
            context["pool"] = place.pool
            context["losslessness"] = place.losslessness.value
            context["price"] = round(1e6 * place.price.ceiling)  # millionths, since Cedar has no fractions
        answer = self._cedar.is_authorized(
            {
                "principal": caller,
                "action": {"type": "Action", "id": "generate"},
                "resource": {"type": "Model", "id": ask.model},
                "context": context,
            },
            self._policies,
            [{"uid": caller, "attrs": named, "parents": []}],
        )
        if answer.allowed:
            return None
        reasons = ", ".join(str(each) for each in answer.diagnostics.reasons)
        return Denial("policy", f"forbidden by policy {reasons}" if reasons else "no policy permits it")
