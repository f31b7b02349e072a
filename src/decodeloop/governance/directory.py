"""Everything that decisions look up, as it stands: replaced whole when something changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from decodeloop.governance.capability import Ask, Denial, Grant, Place, PolicyLanguage, Ruling, rule
from decodeloop.governance.component import DrafterComponent, unfit
from decodeloop.governance.keys import VirtualKey
from decodeloop.governance.price import FREE, Price
from decodeloop.governance.quota import Limit
from decodeloop.governance.settings import PriceSettings
from decodeloop.types import Identity

__all__ = ["Directory"]

REMEMBERED = 10_000  # identities


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    keys: Mapping[str, VirtualKey] = field(default_factory=dict)  # by id
    grants: Sequence[Grant] = ()
    limits: Sequence[Limit] = ()
    prices: Sequence[PriceSettings] = ()
    drafters: Mapping[str, DrafterComponent] = field(default_factory=dict)
    language: PolicyLanguage | None = None
    _limits: dict[Identity, tuple[Limit, ...]] = field(default_factory=dict, repr=False, compare=False)
    _prices: dict[tuple[str, str], Price] = field(default_factory=dict, repr=False, compare=False)

    def limits_of(self, identity: Identity) -> tuple[Limit, ...]:
        found = self._limits.get(identity)
        if found is None:
            found = tuple(limit for limit in self.limits if limit.scope.covers(identity))
            if len(self._limits) < REMEMBERED:
                self._limits[identity] = found
        return found

    def price(self, model: str, pool: str) -> Price:
        """The first price whose patterns match; free where none does."""
        key = (model, pool)
        found = self._prices.get(key)
        if found is None:
            matching = (
                each.record() for each in self.prices if fnmatchcase(model, each.model) and fnmatchcase(pool, each.pool)
            )
            found = next(matching, FREE)
            if len(self._prices) < REMEMBERED:
                self._prices[key] = found
        return found

    def rule(self, identity: Identity, ask: Ask, place: Place | None, now_s: float) -> Ruling:
        """Grants and policies; where drafters are governed, a request can't name one that isn't fit."""
        named = ask.speculation.drafter
        why = unfit(named, self.drafters) if named is not None and self.drafters else None
        if why is not None:
            return Ruling(allowed=False, denials=(Denial("drafter", why),))
        return rule(self.grants, identity, ask, place, now_s=now_s, language=self.language)
